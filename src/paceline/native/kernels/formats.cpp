#include "kernels/formats.hpp"

#include "threads/pool.hpp"

namespace paceline {
namespace {

typedef uint8_t Sixteen __attribute__((vector_size(16), aligned(1), may_alias));

Sixteen load_sixteen(const uint8_t* at) { return *reinterpret_cast<const Sixteen*>(at); }

// The scales and codes of a row's cell.
struct Cell {
    Half scale, min;      // of one cell
    uint8_t small[2];     // scale and minimum in K formats; two signed scales of Q6_K
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
constexpr int kBlockBytes<Q4_K> = 144;
template <>
constexpr int kBlockBytes<Q5_K> = 176;
template <>
constexpr int kBlockBytes<Q6_K> = 210;

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
    to.scale = half_at(block);
    block += 2;
    if (Format::kMin) {
        to.min = half_at(block) ^ 0x8000;  // is added in the file
        block += 2;
    }
    if constexpr (Format::kBits == 8) {
        for (int h = 0; h < 2; ++h) to.codes[h] = load_sixteen(block + 16 * h) ^ uint8_t(128);
        return;
    }
    uint32_t fifth = 0;
    if (Format::kBits == 5) {
        std::memcpy(&fifth, block, 4);
        block += 4;
    }
    const Sixteen both = load_sixteen(block);
    to.codes[0] = both & uint8_t(15);
    to.codes[1] = both >> 4;
    for (int h = 0; Format::kBits == 5 && h < 2; ++h) to.codes[h] |= fifths(fifth, 16 * h);
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

// Where the scales of 8 cells lie in a block.
template <class Format>
constexpr int kSuperAt[2] = {0, 2};
template <>
constexpr int kSuperAt<Q6_K>[2] = {208, 208};

// Codes of one output into a cell, behind its scales.
template <class Format>
void put_codes(const Cell& cell, int output, uint8_t* at) {
    uint8_t codes[32];
    std::memcpy(codes, cell.codes, 32);
    const auto put = [&](uint8_t* line, const uint8_t* four) { std::memcpy(line + 4 * output, four, 4); };
    if constexpr (Format::kBits == 8) {
        for (int s = 0; s < 8; ++s) put(at + 64 * s, codes + 4 * s);
        return;
    }
    uint8_t both[16];
    const Sixteen halves = (cell.codes[0] & uint8_t(15)) | cell.codes[1] << 4;
    std::memcpy(both, &halves, 16);
    for (int j = 0; j < 4; ++j) put(at + Format::kExtra + 64 * j, both + 4 * j);
    if constexpr (Format::kBits == 5) {
        uint8_t line[4] = {};
        for (int k = 0; k < 32; ++k) line[k % 4] |= uint8_t((codes[k] >> 4) << (k / 4));
        put(at, line);
    }
    if constexpr (Format::kBits == 6) {
        for (int h = 0; h < 2; ++h) {
            uint8_t line[4] = {};
            for (int k = 0; k < 16; ++k) line[k % 4] |= uint8_t((codes[16 * h + k] >> 4) << 2 * (k / 4));
            put(at + 64 * h, line);
        }
    }
}

template <class Format>
void pack_row(Format, const uint8_t* row, int64_t inputs, int output, uint8_t* to) {
    for (int64_t c = 0; c < inputs / kCell; ++c) {
        const int g = Format::kHeader ? int(c % kSuper) : 0;
        const uint8_t* block = row + (Format::kHeader ? c / kSuper : c) * kBlockBytes<Format>;
        if (Format::kHeader && g == 0) {
            for (int k = 0; k < (Format::kMin ? 2 : 1); ++k) {
                std::memcpy(to + 2 * (kLanes * k + output), block + kSuperAt<Format>[k], 2);
            }
            to += Format::kHeader;
        }
        Cell cell;
        read_cell<Format>(block, g, cell);
        if constexpr (Format::kScales == Scales::kHalf) {
            std::memcpy(to + 2 * output, &cell.scale, 2);
            if (Format::kMin) std::memcpy(to + 2 * (kLanes + output), &cell.min, 2);
        } else {
            to[output] = cell.small[0];
            to[kLanes + output] = cell.small[1];
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

template <class Format>
void read_row_of(Format, const uint8_t* tile, int64_t inputs, int output, float* to) {
    const auto lane = [output](const uint8_t* at) { return wide(half_at(at + 2 * output)); };
    float d = 0, dmin = 0;
    for (int64_t c = 0; c < inputs / kCell; ++c) {
        if (Format::kHeader && c % kSuper == 0) {
            d = lane(tile);
            if (Format::kMin) dmin = lane(tile + 2 * kLanes);
            tile += Format::kHeader;
        }
        float scale[2], min = 0;
        if constexpr (Format::kScales == Scales::kHalf) {
            scale[0] = scale[1] = lane(tile);
            if (Format::kMin) min = lane(tile + 2 * kLanes);
        } else if constexpr (Format::kScales == Scales::kByte) {
            scale[0] = scale[1] = d * float(tile[output]);
            min = dmin * float(tile[kLanes + output]);
        } else {
            for (int h = 0; h < 2; ++h) scale[h] = d * float(int8_t(tile[kLanes * h + output]));
        }
        const uint8_t* at = tile + Format::kScaleBytes;
        const auto steps = [&](auto... s) {
            const int part = 4 * output / kBytePart * kBytePart;
            const Bytes codes[] = {Format::template step<s>(at + part)...};
            for (int k = 0; k < kCell; ++k) {
                const int code = codes[k / 4][4 * output - part + k % 4];
                const int zero = Format::kBits == 8 ? 128 : Format::kZero;
                *to++ = std::fma(float(code - zero), scale[k / 16], -min);
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
