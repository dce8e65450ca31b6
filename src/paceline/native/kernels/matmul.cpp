#include "kernels/matmul.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace paceline {
namespace {

constexpr int kAhead = 8192;  // prefetch distance in bytes
constexpr int kFew = 16;      // rows that every thread quantizes for itself: others' are far away

// Results of a tile.
using Results = Vec[kTogether];

template <class Format, int N, int kFirst, int kBehind, int kSteps>
PACELINE_INLINE void add_steps(const uint8_t* codes, const QuantizedGroup* rows,
                               Sums<Format::kBits, kSteps> (&sums)[N]) {
    if constexpr (kFirst < kBehind) {
        const Bytes step = Format::template step<kFirst>(codes);
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) sums[r].add(kFirst, step, rows[r].numbers + 4 * kFirst);
        add_steps<Format, N, kFirst + 1, kBehind>(codes, rows, sums);
    }
}

// Integer sums of N rows over the steps of a cell from kFirst to kBehind.
template <class Format, int N, int kFirst, int kBehind>
PACELINE_INLINE void products(const uint8_t* codes, const QuantizedGroup* rows, Ints (&out)[N]) {
    PACELINE_PARTS {
        Sums<Format::kBits, kBehind - kFirst> sums[N];
        add_steps<Format, N, kFirst, kBehind>(codes + i * kBytePart, rows, sums);
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) out[r].p[i] = sums[r].ints();
    }
}

PACELINE_INLINE Ints minus(const Ints& x, int32_t much) {
    Ints out;
    PACELINE_PARTS out.p[i] = x.p[i] - much;
    return out;
}
PACELINE_INLINE Ints weighted(const Ints& x, const Ints& by, const Ints& y, const Ints& more) {
    Ints out;
    PACELINE_PARTS out.p[i] = x.p[i] * by.p[i] + y.p[i] * more.p[i];
    return out;
}

PACELINE_INLINE Ints all_of(int32_t x) {
    Ints out;
    PACELINE_PARTS out.p[i] = IntPart{} + x;
    return out;
}

// Scales and minima of inputs 0-15 and 16-31 of a cell.
struct Halves {
    Ints scales[2], mins[2];
};
template <class Format>
PACELINE_INLINE Halves halves_of(const uint8_t* tile) {
    Halves out;
    for (int h = 0; h < 2; ++h, tile += kLanes) {
        if constexpr (Format::kScales == Scales::kTwo) {
            out.scales[h] = load_ints(reinterpret_cast<const int8_t*>(tile));
        } else {
            const Ints both = load_ints(tile);
            PACELINE_PARTS out.scales[h].p[i] = both.p[i] & 15;
            PACELINE_PARTS out.mins[h].p[i] = both.p[i] >> 4;
        }
    }
    return out;
}

// N quantized rows times a tile, group by group in order. `stride`: from group to group, in bytes.
template <class Format, int N>
__attribute__((noinline)) void tile_of(Format, const uint8_t* tile, int64_t cells, const QuantizedGroup* rows, int64_t stride,
             Results& out) {
    using Super = typename Format::Super;
    constexpr int kZero = Format::kBits == 8 ? kRaised : Format::kZero;
    Vec d = zeros(), dmin = zeros();
    Vec total[N];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) total[r] = zeros();
    for (int64_t c = 0; c < cells; ++c) {
        if (Format::kHeader && c % kSuper == 0) {
            d = load(reinterpret_cast<const Super*>(tile));
            if (Format::kMin) dmin = load(reinterpret_cast<const Super*>(tile) + kLanes);
            tile += Format::kHeader;
        }
        for (int line = 0; line < Format::kBytes; line += 64) __builtin_prefetch(tile + kAhead + line);
        const uint8_t* codes = tile + Format::kScaleBytes;
        Ints sums[N];
        if constexpr (Format::kHalves) {
            Ints others[N];
            products<Format, N, 0, 4>(codes, rows, sums);
            products<Format, N, 4, 8>(codes, rows, others);
            const Halves by = halves_of<Format>(tile);
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                const Ints first = minus(sums[r], kZero * rows[r].sums[0]);
                const Ints second = minus(others[r], kZero * rows[r].sums[1]);
                const Ints both = weighted(first, by.scales[0], second, by.scales[1]);
                total[r] = fma(floats(both) * rows[r].scale, d, total[r]);
                if constexpr (Format::kMin) {
                    const Ints least = weighted(all_of(rows[r].sums[0]), by.mins[0],
                                                all_of(rows[r].sums[1]), by.mins[1]);
                    total[r] = fma(dmin, -(floats(least) * rows[r].scale), total[r]);
                }
            }
        } else {
            products<Format, N, 0, 8>(codes, rows, sums);
            Vec scale, min = zeros();
            if constexpr (Format::kScales == Scales::kHalf) {
                scale = load(reinterpret_cast<const Half*>(tile));
                if (Format::kMin) min = load(reinterpret_cast<const Half*>(tile) + kLanes);
            } else if constexpr (Format::kScales == Scales::kPower) {
                scale = powers(load_ints(tile));
            } else if constexpr (Format::kScales == Scales::kSigned) {
                scale = d * floats(load_ints(reinterpret_cast<const int8_t*>(tile)));
            } else {
                scale = d * floats(load_ints(tile));  // exact: 11 bits by 6
                if (Format::kMin) min = dmin * floats(load_ints(tile + kLanes));
            }
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                Ints ints = sums[r];
                if (kZero) ints = minus(ints, kZero * (rows[r].sums[0] + rows[r].sums[1]));
                total[r] = fma(floats(ints) * rows[r].scale, scale, total[r]);
                if (Format::kMin) total[r] = fma(min, -rows[r].total, total[r]);
            }
        }
        tile += Format::kBytes;
        rows = reinterpret_cast<const QuantizedGroup*>(reinterpret_cast<const char*>(rows) + stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) out[r] = total[r];
}

// N float rows times a tile, input by input in order.
template <class Number, int N>
void tile_of(Plain<Number>, const uint8_t* tile, int64_t cells, const Rows<const float>& x,
             Results& out) {
    const Number* weights = reinterpret_cast<const Number*>(tile);
    Vec total[N];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) total[r] = zeros();
    for (int64_t k = 0; k < cells * kCell; ++k) {
        const Vec w = load(weights + k * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) total[r] = fma(w, x[r][k], total[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) out[r] = total[r];
}

// A row of `x`, normed if there is a norm, quantized.
void quantize_row(const MatmulOp& op, const float* x, int64_t r, QuantizedRows& to) {
    const int64_t width = op.parts[0].inputs;
    const float factor = op.norm ? norm_factor(x, width, op.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[2];
        for (int h = 0; h < 2; ++h) {
            const int64_t at = g * kGroup + h * kLanes;
            values[h] = load(x + at);
            if (op.norm) values[h] = values[h] * factor * load(op.norm + at);
        }
        quantize_group(values, to.group(g)[r]);
    }
}

// Rows that quantized matrices read. Of few rows every thread makes its own copy.
class QuantizedInput {
   public:
    QuantizedInput(const MatmulOp& op, int64_t rows, const Input& x, Scratch& scratch)
        : op_(&op), rows_(rows), x_(x.floats) {
        static std::atomic<uint64_t> ops{0};
        if (x.quantized) {
            shared_ = x.quantized;
        } else if (rows <= kFew) {
            id_ = ++ops;
        } else {
            shared_ = &scratch.quantized;
            scratch.quantized.fit(rows, op.parts[0].inputs);
            each(rows, true, [x = x.floats, to = &scratch.quantized, of = &op](int64_t r) {
                quantize_row(*of, x[r], r, *to);
            });
        }
    }

    const QuantizedRows& rows() const { return shared_ ? *shared_ : own(); }

   private:
    const QuantizedRows& own() const {
        thread_local QuantizedRows quantized;
        thread_local uint64_t id = 0;
        if (id != id_) {
            id = id_;
            quantized.fit(rows_, op_->parts[0].inputs);
            for (int64_t r = 0; r < rows_; ++r) quantize_row(*op_, x_[r], r, quantized);
        }
        return quantized;
    }

    const MatmulOp* op_;
    int64_t rows_;
    Rows<const float> x_;
    const QuantizedRows* shared_ = nullptr;
    uint64_t id_ = 0;  // tells one product from another
};

// Rows that float matrices read, normed.
Rows<const float> normed(const MatmulOp& op, int64_t rows, Rows<const float> x, Scratch& scratch) {
    if (!op.norm) return x;
    const int64_t width = op.parts[0].inputs;
    scratch.normed.resize(rows * width);
    each(rows, rows > 16, [=, &op, to = scratch.normed.data()](int64_t r) {
        const float factor = norm_factor(x[r], width, op.eps);
        for (int64_t d = 0; d < width; d += kLanes) {
            store(to + r * width + d, load(x[r] + d) * factor * load(op.norm + d));
        }
    });
    return {scratch.normed.data(), width};
}

// Two tiles of a part: as many outputs as a group.
struct Pair {
    const Matrix* part;
    int64_t first;  // output of the part
    int64_t to;     // column of the result
};

Pair pair_of(const MatmulOp& op, int64_t number) {
    int64_t before = 0;
    for (int p = 0;; ++p) {
        const int64_t pairs = (op.parts[p].outputs + kGroup - 1) / kGroup;
        if (number < pairs) return {&op.parts[p], number * kGroup, before + number * kGroup};
        number -= pairs;
        before += op.parts[p].outputs;
    }
}

int64_t pairs_of(const MatmulOp& op) {
    int64_t out = 0;
    for (int p = 0; p < (op.gate == Gate::kNone ? op.count : 1); ++p) {
        out += (op.parts[p].outputs + kGroup - 1) / kGroup;
    }
    return out;
}

class Task {
   public:
    Task(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> more, const Output& out,
         Scratch& scratch)
        : op_(op), rows_(rows), more_(more), out_(out), input_(op, any_quantized(op) ? rows : 0, x, scratch) {
        for (int p = 0; p < op.count; ++p) {
            if (is_plain(op.parts[p].kind)) {
                floats_ = normed(op, rows, x.floats, scratch);
                break;
            }
        }
    }

    void run(int64_t number) const {
        const Pair pair = pair_of(op_, number);
        by_rows<kTogether>(int(rows_), [&](auto n, int first) {
            Results results[2], others[2];
            two_tiles<n>(*pair.part, pair.first, first, results);
            if (op_.gate != Gate::kNone) {
                two_tiles<n>(op_.parts[1], pair.first, first, others);
                for (int t = 0; t < 2; ++t) {
                    for (int r = 0; r < n; ++r) {
                        results[t][r] = gated(results[t][r], others[t][r]);
                    }
                }
            }
            for (int r = 0; r < n; ++r) leave(pair, first + r, {results[0][r], results[1][r]});
        });
    }

   private:
    static bool any_quantized(const MatmulOp& op) {
        for (int p = 0; p < op.count; ++p) {
            if (!is_plain(op.parts[p].kind)) return true;
        }
        return false;
    }

    PACELINE_INLINE Vec gated(const Vec& x, const Vec& y) const {
        if (op_.gate == Gate::kClamped) return clamped(x, y);
        return active(op_.gate, x) * y;
    }

    // Results of N rows from `first` on, for the two tiles from an output on.
    template <int N>
    void two_tiles(const Matrix& part, int64_t output, int first, Results (&results)[2]) const {
        const int64_t bytes = part.tile_bytes(), cells = part.inputs / kCell;
        for (int t = 0; t < 2; ++t) {
            const int64_t begin = output + t * kLanes;
            if (begin >= part.outputs) {
                for (int r = 0; r < N; ++r) results[t][r] = zeros();
                return;
            }
            const uint8_t* tile = part.tiles + begin / kLanes * bytes;
            with_format(part.kind, [&](auto format) {
                using Format = decltype(format);
                if constexpr (std::is_same_v<Format, Plain<float>> ||
                              std::is_same_v<Format, Plain<Half>> ||
                              std::is_same_v<Format, Plain<Brain>>) {
                    tile_rows<N>(format, tile, cells, first, results[t]);
                } else {
                    const QuantizedRows& rows = input_.rows();
                    const int64_t stride = reinterpret_cast<const char*>(rows.group(1)) -
                                           reinterpret_cast<const char*>(rows.group(0));
                    tile_of<Format, N>(format, tile, cells, rows.group(0) + first, stride, results[t]);
                }
            });
            for (int r = 0; part.bias && r < N; ++r) results[t][r] = results[t][r] + bias(part, begin);
        }
    }

    template <int N, class Number>
    void tile_rows(Plain<Number> format, const uint8_t* tile, int64_t cells, int first,
                   Results& results) const {
        const Rows<const float> x{floats_[first], floats_.stride};
        tile_of<Number, N>(format, tile, cells, x, results);
    }

    static Vec bias(const Matrix& part, int64_t begin) {
        float some[kLanes] = {};
        std::copy_n(part.bias + begin, std::min<int64_t>(kLanes, part.outputs - begin), some);
        return load(some);
    }

    void leave(const Pair& pair, int64_t row, const Vec (&results)[2]) const {
        if (out_.quantized) {
            quantize_group(results, out_.quantized->group(pair.to / kGroup)[row]);
            return;
        }
        for (int t = 0; t < 2; ++t) {
            const int64_t begin = pair.first + t * kLanes, left = pair.part->outputs - begin;
            if (left <= 0) return;
            const int64_t at = pair.to + t * kLanes;
            float* to = out_.floats[row] + at;
            const Vec value = op_.scale == 1.0f ? results[t] : results[t] * op_.scale;
            if (left >= kLanes) {
                store(to, more_ ? load(more_[row] + at) + value : value);
                continue;
            }
            for (int64_t i = 0; i < left; ++i) to[i] = more_ ? more_[row][at + i] + value[int(i)] : value[int(i)];
        }
    }

    const MatmulOp& op_;
    const int64_t rows_;
    const Rows<const float> more_;
    const Output out_;
    const QuantizedInput input_;
    Rows<const float> floats_{};
};

}  // namespace

float norm_factor(const float* x, int64_t width, float eps) {
    Vec square = zeros();
    for (int64_t d = 0; d < width; d += kLanes) square = fma(load(x + d), load(x + d), square);
    return 1.0f / std::sqrt(sum(square) / float(width) + eps);
}

float mean(const float* x, int64_t width) {
    Vec total = zeros();
    for (int64_t d = 0; d < width; d += kLanes) total = total + load(x + d);
    return sum(total) / float(width);
}

void matmul(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> more,
            const Output& out, Scratch& scratch) {
    const Task task(op, rows, x, more, out, scratch);
    const int64_t pairs = pairs_of(op);
    // Parts of a few pairs, so that threads end together.
    const int64_t parts = std::min<int64_t>(pairs, 8 * Pool::shared().threads());
    each(parts, true, [=, task = &task](int64_t part) {
        for (int64_t p = part * pairs / parts; p < (part + 1) * pairs / parts; ++p) task->run(p);
    });
}

}  // namespace paceline
