// Matrices in the block formats of GGUF files, their codes and scales as stored, in another order.
//
// A tile is 16 outputs. Its inputs follow in cells of 32, so a product reads memory in order. A cell
// has, by format, [16] numbers of each kind of scale, then codes: 8 steps of 64 bytes (four inputs
// of each output). Codes of four bits lie two steps in a byte (j and j + 4), of two bits four
// (steps 0-3, and 4-7). What a code has beyond stands in front, a line of 64 bytes for one more bit
// (bit s: step s), two for two (as codes of two bits). Float formats hold [32, 16] numbers. Formats
// with blocks of 256 have scales of 8 cells in front of them.

#pragma once

#include <cstdint>

#include "kernels/bytes.hpp"

namespace paceline {

constexpr int kCell = 32;   // inputs that share scales
constexpr int kSuper = 8;   // cells that share scales of scales

// The numbers of GGUF, and of I8_K, which no file has: codes of eight bits that formats with grids
// expand to, blocks of a float, 16 scales and 256 codes.
enum class Kind : int32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ4_NL = 20,
    kIQ4_XS = 23,
    kBF16 = 30,
    kMXFP4 = 39,
    kI8_K = 256,
};

// How the scales of a cell are stored.
enum class Scales {
    kHalf,     // in half precision
    kPower,    // the exponent of a power of two
    kByte,     // in bytes, under those of 8 cells
    kSigned,   // in a signed byte, under that of 8 cells
    kTwo,      // in two signed bytes for 16 inputs each, under that of 8 cells
    kNibbles,  // in two bytes for 16 inputs each, a minimum in the upper half, under those of 8 cells
};

// By code, raised by the format's zero.
struct Table {
    uint8_t numbers[16];
};
constexpr Table raised(const int (&numbers)[16], int zero) {
    Table out{};
    for (int i = 0; i < 16; ++i) out.numbers[i] = uint8_t(numbers[i] + zero);
    return out;
}

// Bits of a code that is looked up, and what it stands for.
struct Itself {
    static constexpr int kBits = 0;
};
struct NonLinear {
    static constexpr int kBits = 8;
    static constexpr Table kTable = raised(
        {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 128);
};
struct TwiceFloat4 {  // numbers with two bits of exponent and one of mantissa
    static constexpr int kBits = 5;
    static constexpr Table kTable = raised({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 12);
};

template <int kStoredOf, Scales kScalesOf, int kZeroOf, bool kMinOf, class Numbers = Itself,
          class SuperOf = Half>
struct Quantized {
    using Super = SuperOf;                    // a scale of 8 cells
    static constexpr int kStored = kStoredOf;  // bits of a code in the tile
    static constexpr int kBits = Numbers::kBits ? Numbers::kBits : kStored;  // that meet activations
    static constexpr Scales kScales = kScalesOf;
    static constexpr int kZero = kZeroOf;  // is subtracted from every code, of eight bits 128
    static constexpr bool kMin = kMinOf;   // is subtracted from every number
    static constexpr bool kHalves = kScales == Scales::kTwo || kScales == Scales::kNibbles;
    static constexpr bool kCells = kScales == Scales::kHalf || kScales == Scales::kPower;
    // Bytes in front of 8 cells.
    static constexpr int kHeader = kCells ? 0 : int(sizeof(Super)) * kLanes * (kMin ? 2 : 1);
    static constexpr int kScaleBytes = kLanes * (kScales == Scales::kHalf ? 2 * (kMin ? 2 : 1)
                                                 : kScales == Scales::kPower || kScales == Scales::kSigned ? 1 : 2);
    static constexpr int kLow = kStored < 4 ? 2 : 4;  // bits that lie together, if not eight
    static constexpr int kExtra = kStored == 8 ? 0 : 64 * (kStored - kLow);
    static constexpr int kCodes = kStored == 8 ? 512 : 64 * kLow;
    static constexpr int kBytes = kScaleBytes + kExtra + kCodes;

    // The codes of a step's part; `at` points behind the scales, and as far into the step.
    template <int kStep>
    static PACELINE_INLINE Bytes step(const uint8_t* at) {
        constexpr int j = kStep % 4;
        if constexpr (kStored == 8) {
            return load_bytes(at + 64 * kStep);
        } else {
            Bytes low;
            if constexpr (kLow == 2) {
                low = bits<-2 * j, 3 << 2 * j>(load_bytes(at + kExtra + 64 * (kStep / 4)));
            } else {
                const Bytes both = load_bytes(at + kExtra + 64 * j);
                low = kStep < 4 ? bits<0, 15>(both) : bits<-4, 240>(both);
            }
            if constexpr (kExtra == 64) low |= bits<kLow - kStep, 1 << kStep>(load_bytes(at));
            if constexpr (kExtra == 128) low |= bits<4 - 2 * j, 3 << 2 * j>(load_bytes(at + 64 * (kStep / 4)));
            if constexpr (Numbers::kBits) return looked_up(Numbers::kTable.numbers, low);
            return low;
        }
    }
};

using Q4_0 = Quantized<4, Scales::kHalf, 8, false>;
using Q4_1 = Quantized<4, Scales::kHalf, 0, true>;
using Q5_0 = Quantized<5, Scales::kHalf, 16, false>;
using Q5_1 = Quantized<5, Scales::kHalf, 0, true>;
using Q8_0 = Quantized<8, Scales::kHalf, 128, false>;
using Q2_K = Quantized<2, Scales::kNibbles, 0, true>;
using Q3_K = Quantized<3, Scales::kTwo, 4, false>;
using Q4_K = Quantized<4, Scales::kByte, 0, true>;
using Q5_K = Quantized<5, Scales::kByte, 0, true>;
using Q6_K = Quantized<6, Scales::kTwo, 32, false>;
using IQ4_NL = Quantized<4, Scales::kHalf, 128, false, NonLinear>;
using IQ4_XS = Quantized<4, Scales::kSigned, 128, false, NonLinear>;
using MXFP4 = Quantized<4, Scales::kPower, 12, false, TwiceFloat4>;
using I8_K = Quantized<8, Scales::kTwo, 128, false, Itself, float>;

template <class Number>
struct Plain {
    static constexpr int kHeader = 0;
    static constexpr int kBytes = kCell * kLanes * int(sizeof(Number));
};

// Calls `some` with an object of the format's type.
template <class Some>
void with_format(Kind kind, Some&& some) {
    switch (kind) {
        case Kind::kF32: return some(Plain<float>());
        case Kind::kF16: return some(Plain<Half>());
        case Kind::kBF16: return some(Plain<Brain>());
        case Kind::kQ4_0: return some(Q4_0());
        case Kind::kQ4_1: return some(Q4_1());
        case Kind::kQ5_0: return some(Q5_0());
        case Kind::kQ5_1: return some(Q5_1());
        case Kind::kQ8_0: return some(Q8_0());
        case Kind::kQ2_K: return some(Q2_K());
        case Kind::kQ3_K: return some(Q3_K());
        case Kind::kQ4_K: return some(Q4_K());
        case Kind::kQ5_K: return some(Q5_K());
        case Kind::kQ6_K: return some(Q6_K());
        case Kind::kIQ4_NL: return some(IQ4_NL());
        case Kind::kIQ4_XS: return some(IQ4_XS());
        case Kind::kMXFP4: return some(MXFP4());
        case Kind::kI8_K: return some(I8_K());
    }
}

constexpr bool is_plain(Kind kind) {
    return kind == Kind::kF32 || kind == Kind::kF16 || kind == Kind::kBF16;
}

// A matrix of tiles.
struct Matrix {
    int64_t outputs, inputs;  // inputs are whole cells, under scales of 8 whole groups of 8
    Kind kind;
    int32_t unused;
    const uint8_t* tiles;
    const float* bias;  // [outputs], or null

    int64_t tile_bytes() const;
};

// Bytes of the tiles of such a matrix; 0 for a kind that is unknown here.
int64_t packed_bytes(Kind kind, int64_t outputs, int64_t inputs);

// Packs rows of blocks, `stride` bytes apart; output o is row `order[o]`, or o if null. The rest of
// the last tile is zero.
void pack(Kind kind, const uint8_t* rows, int64_t stride, const int64_t* order, int64_t outputs,
          int64_t inputs, uint8_t* to);

// Row `output` of a matrix, as floats.
void read_row(const Matrix& matrix, int64_t output, float* to);

}  // namespace paceline
