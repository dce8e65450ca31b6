#include "kernels/formats.hpp"

#include "threads/pool.hpp"

namespace paceline {
namespace {

typedef uint8_t Sixteen __attribute__((vector_size(16), aligned(1), may_alias));

Sixteen load_sixteen(const uint8_t* at) { return *reinterpret_cast<const Sixteen*>(at); }

// The scales and codes of a row's cell.
struct Cell {
    Half scale, min;      // of one cell
    uint8_t small[2];     // the numbers of a cell under scales of 8 cells
    Sixteen codes[2];     // all bits of inputs 0-15 and 16-31
};

template <class Format>
constexpr int kBlockBytes = 0;
template <>
constexpr int kBlockBytes<Q4_0> = 18;
template <>
constexpr int kBlockBytes<Q4_1> = 20;
template <>
constexpr int kBlockBytes<Q5_0> = 22;
template <>
constexpr int kBlockBytes<Q5_1> = 24;
template <>
constexpr int kBlockBytes<Q8_0> = 34;
template <>
constexpr int kBlockBytes<Q2_K> = 84;
template <>
constexpr int kBlockBytes<Q3_K> = 110;
template <>
constexpr int kBlockBytes<Q4_K> = 144;
template <>
constexpr int kBlockBytes<Q5_K> = 176;
template <>
constexpr int kBlockBytes<Q6_K> = 210;
template <>
constexpr int kBlockBytes<IQ4_NL> = 18;
template <>
constexpr int kBlockBytes<IQ4_XS> = 136;
template <>
constexpr int kBlockBytes<MXFP4> = 17;
template <>
constexpr int kBlockBytes<I8_K> = 276;

Half half_at(const uint8_t* at) {
    Half out;
    std::memcpy(&out, at, sizeof out);
    return out;
}

// Fifth bits of 16 inputs, from a word.
Sixteen fifths(uint32_t word, int first) {
    Sixteen out;
    for (int i = 0; i < 16; ++i) out[i] = uint8_t((word >> (first + i) & 1) << 4);
    return out;
}

// Formats with blocks of one cell.
template <class Format>
void read_cell(const uint8_t* block, int, Cell& to) {
    if constexpr (Format::kScales == Scales::kPower) {
        to.small[0] = *block++;
    } else {
        to.scale = half_at(block);
        block += 2;
    }
    if (Format::kMin) {
        to.min = half_at(block) ^ 0x8000;  // is added in the file
        block += 2;
    }
    if constexpr (Format::kStored == 8) {
        for (int h = 0; h < 2; ++h) to.codes[h] = load_sixteen(block + 16 * h) ^ uint8_t(128);
        return;
    }
    uint32_t fifth = 0;
    if (Format::kStored == 5) {
        std::memcpy(&fifth, block, 4);
        block += 4;
    }
    const Sixteen both = load_sixteen(block);
    to.codes[0] = both & uint8_t(15);
    to.codes[1] = both >> 4;
    for (int h = 0; Format::kStored == 5 && h < 2; ++h) to.codes[h] |= fifths(fifth, 16 * h);
}

// K formats: `g` is the cell's number in its block.
void read_small(const uint8_t* q, int g, Cell& to) {
    if (g < 4) {
        to.small[0] = q[g] & 63;
        to.small[1] = q[g + 4] & 63;
    } else {
        to.small[0] = (q[g + 4] & 15) | (q[g - 4] >> 6) << 4;
        to.small[1] = (q[g + 4] >> 4) | (q[g] >> 6) << 4;
    }
}

template <>
void read_cell<Q4_K>(const uint8_t* block, int g, Cell& to) {
    read_small(block + 4, g, to);
    for (int h = 0; h < 2; ++h) {
        const Sixteen both = load_sixteen(block + 16 + 32 * (g / 2) + 16 * h);
        to.codes[h] = g % 2 ? both >> 4 : both & uint8_t(15);
    }
}

template <>
void read_cell<Q5_K>(const uint8_t* block, int g, Cell& to) {
    read_small(block + 4, g, to);
    for (int h = 0; h < 2; ++h) {
        const Sixteen fifth = load_sixteen(block + 16 + 16 * h) >> uint8_t(g) & uint8_t(1);
        const Sixteen both = load_sixteen(block + 48 + 32 * (g / 2) + 16 * h);
        to.codes[h] = (g % 2 ? both >> 4 : both & uint8_t(15)) | fifth << 4;
    }
}

template <>
void read_cell<Q6_K>(const uint8_t* block, int g, Cell& to) {
    const int half = g / 4, i = g % 4;
    for (int h = 0; h < 2; ++h) {
        to.small[h] = block[192 + 8 * half + 2 * i + h];
        const Sixteen both = load_sixteen(block + 64 * half + 32 * (i % 2) + 16 * h);
        const Sixteen high = load_sixteen(block + 128 + 32 * half + 16 * h) >> uint8_t(2 * i);
        to.codes[h] = (i / 2 ? both >> 4 : both & uint8_t(15)) | (high & uint8_t(3)) << 4;
    }
}

// Two bits of inputs 16 h to 16 h + 15 of a cell: Q2_K and Q3_K.
Sixteen two_bits(const uint8_t* codes, int g, int h) {
    return load_sixteen(codes + 32 * (g / 4) + 16 * h) >> uint8_t(2 * (g % 4)) & uint8_t(3);
}

template <>
void read_cell<Q2_K>(const uint8_t* block, int g, Cell& to) {
    for (int h = 0; h < 2; ++h) {
        to.small[h] = block[2 * g + h];
        to.codes[h] = two_bits(block + 16, g, h);
    }
}

template <>
void read_cell<Q3_K>(const uint8_t* block, int g, Cell& to) {
    const uint8_t* scales = block + 96;
    for (int h = 0; h < 2; ++h) {
        const int s = 2 * g + h;
        const int low = scales[s % 8] >> 4 * (s / 8) & 15, high = scales[8 + s % 4] >> 2 * (s / 4) & 3;
        to.small[h] = uint8_t(int8_t((low | high << 4) - 32));
        const Sixteen third = load_sixteen(block + 16 * h) >> uint8_t(g) & uint8_t(1);
        to.codes[h] = two_bits(block + 32, g, h) | third << 2;
    }
}

template <>
void read_cell<IQ4_XS>(const uint8_t* block, int g, Cell& to) {
    const int low = block[4 + g / 2] >> 4 * (g % 2) & 15, high = half_at(block + 2) >> 2 * g & 3;
    to.small[0] = uint8_t(int8_t((low | high << 4) - 32));
    const Sixteen both = load_sixteen(block + 8 + 16 * g);
    to.codes[0] = both & uint8_t(15);
    to.codes[1] = both >> 4;
}

template <>
void read_cell<I8_K>(const uint8_t* block, int g, Cell& to) {
    for (int h = 0; h < 2; ++h) {
        to.small[h] = block[4 + 2 * g + h];
        to.codes[h] = load_sixteen(block + 20 + 32 * g + 16 * h) ^ uint8_t(128);
    }
}

// Where the scales of 8 cells lie in a block.
template <class Format>
constexpr int kSuperAt[2] = {0, 2};
template <>
constexpr int kSuperAt<Q2_K>[2] = {80, 82};
template <>
constexpr int kSuperAt<Q3_K>[2] = {108, 108};
template <>
constexpr int kSuperAt<Q6_K>[2] = {208, 208};

// Codes of one output into a cell, behind its scales.
template <class Format>
void put_codes(const Cell& cell, int output, uint8_t* at) {
    uint8_t codes[32];
    std::memcpy(codes, cell.codes, 32);
    const auto put = [&](uint8_t* line, const uint8_t* four) { std::memcpy(line + 4 * output, four, 4); };
    if constexpr (Format::kStored == 8) {
        for (int s = 0; s < 8; ++s) put(at + 64 * s, codes + 4 * s);
        return;
    }
    // Two bits of four steps in a byte, from bit `first` of a code on.
    const auto put_pairs = [&](uint8_t* lines, int first) {
        for (int h = 0; h < 2; ++h) {
            uint8_t line[4] = {};
            for (int k = 0; k < 16; ++k) line[k % 4] |= uint8_t((codes[16 * h + k] >> first & 3) << 2 * (k / 4));
            put(lines + 64 * h, line);
        }
    };
    if constexpr (Format::kLow == 2) {
        put_pairs(at + Format::kExtra, 0);
    } else {
        uint8_t both[16];
        const Sixteen halves = (cell.codes[0] & uint8_t(15)) | cell.codes[1] << 4;
        std::memcpy(both, &halves, 16);
        for (int j = 0; j < 4; ++j) put(at + Format::kExtra + 64 * j, both + 4 * j);
    }
    if constexpr (Format::kExtra == 64) {
        uint8_t line[4] = {};
        for (int k = 0; k < 32; ++k) line[k % 4] |= uint8_t((codes[k] >> Format::kLow) << (k / 4));
        put(at, line);
    }
    if constexpr (Format::kExtra == 128) put_pairs(at, 4);
}

template <class Format>
void pack_row(Format, const uint8_t* row, int64_t inputs, int output, uint8_t* to) {
    for (int64_t c = 0; c < inputs / kCell; ++c) {
        const int g = Format::kHeader ? int(c % kSuper) : 0;
        const uint8_t* block = row + (Format::kHeader ? c / kSuper : c) * kBlockBytes<Format>;
        if (Format::kHeader && g == 0) {
            for (int k = 0; k < (Format::kMin ? 2 : 1); ++k) {
                constexpr int kSize = sizeof(typename Format::Super);
                std::memcpy(to + kSize * (kLanes * k + output), block + kSuperAt<Format>[k], kSize);
            }
            to += Format::kHeader;
        }
        Cell cell;
        read_cell<Format>(block, g, cell);
        if constexpr (Format::kScales == Scales::kHalf) {
            std::memcpy(to + 2 * output, &cell.scale, 2);
            if (Format::kMin) std::memcpy(to + 2 * (kLanes + output), &cell.min, 2);
        } else {
            for (int h = 0; h < Format::kScaleBytes / kLanes; ++h) to[kLanes * h + output] = cell.small[h];
        }
        put_codes<Format>(cell, output, to + Format::kScaleBytes);
        to += Format::kBytes;
    }
}

template <class Number>
void pack_row(Plain<Number>, const uint8_t* row, int64_t inputs, int output, uint8_t* to) {
    for (int64_t k = 0; k < inputs; ++k) {
        std::memcpy(to + (k * kLanes + output) * sizeof(Number), row + k * sizeof(Number), sizeof(Number));
    }
}

// Scale of a cell of one output, and for inputs 0-15 and 16-31 what codes are multiplied by first,
// and a minimum.
struct CellScales {
    float scale = 0, min[2] = {};
    int by[2] = {1, 1};
};
template <class Format>
CellScales read_scales(const uint8_t* tile, int output, float d, float dmin) {
    CellScales out;
    out.scale = d;
    for (int h = 0; h < 2; ++h) {
        const uint8_t* at = tile + output + kLanes * (Format::kHalves ? h : 0);
        if constexpr (Format::kScales == Scales::kHalf) {
            out.scale = wide(half_at(tile + 2 * output));
            if (Format::kMin) out.min[h] = wide(half_at(tile + 2 * (kLanes + output)));
        } else if constexpr (Format::kScales == Scales::kPower) {
            out.scale = powers(load_ints(tile))[output];
        } else if constexpr (Format::kScales == Scales::kByte) {
            out.by[h] = *at;
            out.min[h] = dmin * float(at[kLanes]);
        } else if constexpr (Format::kScales == Scales::kNibbles) {
            out.by[h] = *at & 15;
            out.min[h] = dmin * float(*at >> 4);
        } else {
            out.by[h] = int8_t(*at);
        }
    }
    return out;
}

template <class Format>
void read_row_of(Format, const uint8_t* tile, int64_t inputs, int output, float* to) {
    using Super = typename Format::Super;
    float d = 0, dmin = 0;
    for (int64_t c = 0; c < inputs / kCell; ++c) {
        if (Format::kHeader && c % kSuper == 0) {
            d = load(reinterpret_cast<const Super*>(tile))[output];
            if (Format::kMin) dmin = load(reinterpret_cast<const Super*>(tile) + kLanes)[output];
            tile += Format::kHeader;
        }
        const CellScales scales = read_scales<Format>(tile, output, d, dmin);
        const uint8_t* at = tile + Format::kScaleBytes;
        const auto steps = [&](auto... s) {
            const int part = 4 * output / kBytePart * kBytePart;
            const Bytes codes[] = {Format::template step<s>(at + part)...};
            for (int k = 0; k < kCell; ++k) {
                const int code = codes[k / 4][4 * output - part + k % 4];
                const int number = (code - Format::kZero) * scales.by[k / 16];
                *to++ = std::fma(float(number), scales.scale, -scales.min[k / 16]);
            }
        };
        using std::integral_constant;
        steps(integral_constant<int, 0>(), integral_constant<int, 1>(), integral_constant<int, 2>(),
              integral_constant<int, 3>(), integral_constant<int, 4>(), integral_constant<int, 5>(),
              integral_constant<int, 6>(), integral_constant<int, 7>());
        tile += Format::kBytes;
    }
}

template <class Number>
void read_row_of(Plain<Number>, const uint8_t* tile, int64_t inputs, int output, float* to) {
    for (int64_t k = 0; k < inputs; ++k) {
        to[k] = load(reinterpret_cast<const Number*>(tile) + k * kLanes)[output];
    }
}

int64_t bytes_of(Kind kind, int64_t inputs) {
    int64_t out = 0;
    with_format(kind, [&](auto format) {
        using Format = decltype(format);
        out = inputs / kCell * Format::kBytes + inputs / (kCell * kSuper) * Format::kHeader;
    });
    return out;
}

}  // namespace

int64_t Matrix::tile_bytes() const { return bytes_of(kind, inputs); }

int64_t packed_bytes(Kind kind, int64_t outputs, int64_t inputs) {
    return (outputs + kLanes - 1) / kLanes * bytes_of(kind, inputs);
}

void pack(Kind kind, const uint8_t* rows, int64_t stride, const int64_t* order, int64_t outputs,
          int64_t inputs, uint8_t* to) {
    const int64_t tile = bytes_of(kind, inputs);
    with_format(kind, [&](auto format) {
        each((outputs + kLanes - 1) / kLanes, true, [=](int64_t t) {
            if ((t + 1) * kLanes > outputs) std::memset(to + t * tile, 0, tile);
            for (int64_t o = t * kLanes; o < std::min((t + 1) * kLanes, outputs); ++o) {
                const uint8_t* row = rows + (order ? order[o] : o) * stride;
                pack_row(format, row, inputs, int(o % kLanes), to + t * tile);
            }
        });
    });
}

void read_row(const Matrix& matrix, int64_t output, float* to) {
    const uint8_t* tile = matrix.tiles + output / kLanes * matrix.tile_bytes();
    with_format(matrix.kind, [&](auto format) {
        read_row_of(format, tile, matrix.inputs, int(output % kLanes), to);
    });
}

}  // namespace paceline
