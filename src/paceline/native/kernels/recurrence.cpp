#include "kernels/recurrence.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "threads/pool.hpp"

namespace paceline {
namespace {

constexpr int64_t kPiece = 1024;  // columns of a convolution that one thread takes
constexpr int64_t kFew = 4;       // rows that one thread takes in

// log(1 + e^x).
Vec softplus(const Vec& x) {
    constexpr float kPowers[] = {-0.0031760571f, 0.019542528f, -0.056373615f, 0.10543624f,
                                 -0.15269667f,   0.19663274f,  -0.24951616f,  0.3332971f,
                                 -0.49999893f,   1.0f};
    const Vec y = exponential(-size_of(x));
    Vec total = all(kPowers[0]);
    for (int i = 1; i < 10; ++i) total = fma(total, y, all(kPowers[i]));
    return fma(y, total, larger(x, zeros()));
}

void to_length(float* x, int64_t width, float length) {
    const float factor = 1.0f / std::sqrt(dot(x, x, width) + 1e-6f);
    for (int64_t d = 0; d < width; ++d) x[d] = x[d] * factor * length;
}

// 16 columns of a state, [width][16], changed by a row from `from` to `to`, which may be the same.
struct Row {
    const float *query, *key, *value;
    float strength, decay, skip;
};

Vec in_chains(const Vec (&chains)[4]) { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }

// What the keys read already comes off the values of a delta rule, and of no others.
template <bool kDelta>
Vec change(const float* from, float* to, int64_t width, const Row& row, float* out) {
    Vec known[4] = {zeros(), zeros(), zeros(), zeros()}, read[4] = {zeros(), zeros(), zeros(), zeros()};
    const Vec decay = all(row.decay), value = load(row.value);
    for (int64_t i = 0; kDelta && i < width; i += 4) {
        for (int c = 0; c < 4; ++c) {
            known[c] = fma(load(from + (i + c) * kLanes) * decay, row.key[i + c], known[c]);
        }
    }
    const Vec delta = (kDelta ? value - in_chains(known) : value) * row.strength;
    for (int64_t i = 0; i < width; i += 4) {
        for (int c = 0; c < 4; ++c) {
            const Vec own = fma(delta, row.key[i + c], load(from + (i + c) * kLanes) * decay);
            store(to + (i + c) * kLanes, own);
            read[c] = fma(own, row.query[i + c], read[c]);
        }
    }
    store(out, kDelta ? in_chains(read) : fma(value, row.skip, in_chains(read)));
    return delta;
}

void replay(const float* from, float* to, int64_t width, const float* key, const float* delta,
            float decay) {
    for (int64_t i = 0; i < width; ++i) {
        store(to + i * kLanes, fma(load(delta), key[i], load(from + i * kLanes) * decay));
    }
}

}  // namespace

Past Recurrences::step(const Recurrence& of, int64_t step) const {
    if (step >= of.lates) return {nullptr, int32_t(of.row + step - of.lates), -1};
    if (step >= 0) return {of.late, int32_t(-2 - step), -1};
    return {of.base, -1, int32_t(taps_ - 1 + step)};
}

void Recurrences::set(const Recurrence* of, int64_t count, const int32_t* parents, int taps) {
    all_.assign(of, of + count);
    parents_ = parents;
    taps_ = taps;
    most_ = 0;
    before_.clear();
    stored_.clear();
    node_.clear();
    places_.clear();
    const int past = taps - 1;
    for (const Recurrence& one : all_) {
        const int64_t steps = one.lates + one.fresh;
        for (int j = 0; j < past; ++j) stored_.push_back(step(one, one.stored - past + j));
        for (int64_t r = 0; r < one.fresh; ++r) {
            for (int j = 0; j < past; ++j) before_.push_back(step(one, one.lates + r - past + j));
            node_.push_back(-1);
        }
        std::vector<int64_t> last(one.nodes, -1);
        for (int64_t n = 0; n < one.nodes; ++n) {
            const int32_t parent = parents[one.node + n];
            if (parent >= 0) last[parent] = n;
        }
        int32_t used = 0;
        for (int64_t n = 0; n < one.nodes; ++n) {
            const int32_t parent = parents[one.node + n];
            const bool takes = parent >= 0 && last[parent] == n;
            places_.push_back(takes ? places_[one.node + parent] : used++);
            const int64_t begin = int64_t(before_.size());
            before_.resize(begin + past);
            int64_t at = n, back = steps;
            for (int j = past - 1; j >= 0; --j) {
                at = at < 0 ? -1 : parents[one.node + at];
                before_[begin + j] = at < 0 ? step(one, --back)
                                            : Past{nullptr, int32_t(one.row + one.fresh + at), -1};
            }
            node_.push_back(one.node + n);
        }
        most_ = std::max(most_, used);
    }
}

void convolve(const Convolution& of, const Recurrences& in, int64_t rows, Rows<const float> x,
              int64_t column, Rows<float> records, Rows<float> out) {
    const int past = in.taps() - 1;
    const auto input = [&](const Past& at) -> const float* {
        if (at.row >= 0) return x[at.row];
        if (!at.at) return nullptr;
        if (at.tail >= 0) return at.at + of.tail + at.tail * of.width;
        return at.at + (-2 - int64_t(at.row)) * records.stride + column;
    };
    struct {
        decltype(input)* find;
        const Convolution* of;
        const Recurrences* in;
        Rows<const float> x;
        int64_t column, rows, pieces;
        Rows<float> records, out;
        int past;
    } const all{&input, &of, &in, x, column, rows, (of.width + kPiece - 1) / kPiece, records, out, past};
    each(rows * all.pieces, rows * all.pieces > 1, [all](int64_t task) {
        const int64_t r = task / all.pieces, begin = task % all.pieces * kPiece;
        const int64_t end = std::min(begin + kPiece, all.of->width), width = all.of->width;
        const float* from[kMostTaps];
        for (int j = 0; j < all.past; ++j) from[j] = (*all.find)(all.in->before(r)[j]);
        from[all.past] = all.x[r];
        for (int64_t d = begin; d < end; d += kLanes) {
            Vec total = all.of->bias ? load(all.of->bias + d) : zeros();
            for (int j = 0; j <= all.past; ++j) {
                if (from[j]) total = fma(load(from[j] + d), load(all.of->weights + j * width + d), total);
            }
            store(all.out[r] + d, all.of->activated ? silu(total) : total);
        }
        const int64_t node = all.in->node(r);
        if (node < 0) return;
        std::memcpy(all.records[node] + all.column + begin, all.x[r] + begin, sizeof(float) * (end - begin));
    });
    for (size_t s = 0; s < in.all().size(); ++s) {
        float* ahead = in.all()[s].ahead;
        for (int j = 0; ahead && j < past; ++j) {
            float* to = ahead + of.tail + j * of.width;
            const float* from = input(in.stored(s)[j]);
            if (from) std::memcpy(to, from, sizeof(float) * of.width);
            else std::memset(to, 0, sizeof(float) * of.width);
        }
    }
}

namespace {

template <bool kDelta>
void pass(const StateHeads& of, const Recurrences& in, int64_t rows, Rows<float> x,
          Rows<float> gates, int64_t column, Rows<float> records, Rows<float> out) {
    const int64_t width = of.key_width, keys = of.key_heads * width;
    const int64_t values = int64_t(of.value_heads) * of.value_width;
    const float length = 1.0f / std::sqrt(float(width));
    struct {
        const StateHeads* of;
        const Recurrences* in;
        Rows<float> x, gates;
        int64_t column;
        Rows<float> records, out;
        int64_t width, keys, values, blocks;
        int64_t query_at, key_at, value_at;  // in a row
        float length;
    } const all{&of, &in, x, gates, column, records, out, width, keys, values,
                of.value_width / kLanes, kDelta ? 0 : values + keys, kDelta ? keys : values,
                kDelta ? 2 * keys : 0, length};
    each(rows, rows > kFew, [all](int64_t r) {
        float *row = all.x[r], *gate = all.gates[r];
        for (int64_t d = 0; kDelta && d < all.keys; d += all.width) {
            to_length(row + d, all.width, all.length);
            to_length(row + all.keys + d, all.width, 1.0f);
        }
        const int32_t heads = all.of->value_heads;
        for (int32_t h = 0; h < heads; ++h) {
            const Vec slow = softplus(paceline::all(gate[heads + h] + all.of->dt[h]));
            gate[h] = (kDelta ? sigmoid(paceline::all(gate[h])) : slow)[0];
            gate[heads + h] = exponential((slow * all.of->rate[h])[0]);
        }
        const int64_t node = all.in->node(r);
        if (node < 0) return;
        float* record = all.records[node] + all.column;
        std::memcpy(record, row + all.key_at, sizeof(float) * all.keys);
        std::memcpy(record + all.keys + all.values, gate + heads, sizeof(float) * heads);
    });
    const int64_t tasks = int64_t(in.all().size()) * of.value_heads * all.blocks;
    each(tasks, true, [all](int64_t task) {
        const StateHeads& of = *all.of;
        const int64_t block = task % all.blocks, width = all.width, size = width * kLanes;
        const int64_t head = task / all.blocks % of.value_heads;
        const Recurrence& one = all.in->all()[task / all.blocks / of.value_heads];
        const int64_t shared = of.value_heads / of.key_heads;
        const int64_t key = (of.tiled ? head % of.key_heads : head / shared) * width;
        const int64_t column = head * of.value_width + block * kLanes;
        const int64_t place = of.sum + (head * all.blocks + block) * size;
        thread_local std::vector<float> scratch;
        const size_t room = size_t((1 + all.in->most()) * size);
        if (scratch.size() < room) scratch.resize(room);
        const float* from = one.base ? one.base + place : scratch.data();
        if (!one.base) std::memset(scratch.data(), 0, sizeof(float) * size);
        const auto row_of = [&](int64_t r) {
            const float *row = all.x[r], *gate = all.gates[r];
            return Row{row + all.query_at + key, row + all.key_at + key,
                       row + all.value_at + column, gate[head], gate[of.value_heads + head],
                       kDelta ? 0.0f : of.skip[head]};
        };
        for (int64_t step = 0; step < one.lates + one.fresh; ++step) {
            float* to = one.ahead && step + 1 == one.stored ? one.ahead + place : scratch.data();
            if (step < one.lates) {
                const float* record = one.late + step * all.records.stride + all.column;
                const float* behind = record + all.keys;
                replay(from, to, width, record + key, behind + column, behind[all.values + head]);
            } else {
                const int64_t r = one.row + step - one.lates;
                change<kDelta>(from, to, width, row_of(r), all.out[r] + column);
            }
            from = to;
        }
        for (int64_t n = 0; n < one.nodes; ++n) {
            const int64_t node = one.node + n, r = one.row + one.fresh + n;
            const int32_t parent = all.in->parent(node);
            const float* before =
                parent < 0 ? from : scratch.data() + (1 + all.in->place(one.node + parent)) * size;
            float* to = scratch.data() + (1 + all.in->place(node)) * size;
            const Vec delta = change<kDelta>(before, to, width, row_of(r), all.out[r] + column);
            store(all.records[node] + all.column + all.keys + column, delta);
        }
    });
}

}  // namespace

void delta(const StateHeads& of, const Recurrences& in, int64_t rows, Rows<float> x,
           Rows<float> gates, int64_t column, Rows<float> records, Rows<float> out) {
    pass<true>(of, in, rows, x, gates, column, records, out);
}

void scan(const StateHeads& of, const Recurrences& in, int64_t rows, Rows<float> x,
          Rows<float> gates, int64_t column, Rows<float> records, Rows<float> out) {
    pass<false>(of, in, rows, x, gates, column, records, out);
}

}  // namespace paceline
