// Matrices in the block formats of GGUF files, their codes and scales as stored, in another order.
//
// A tile is 16 outputs. Its inputs follow in cells of 32, so a product reads memory in order. A cell
// has, by format, [16] numbers of each kind of scale, then codes: 8 steps of 64 bytes (four inputs
// of each output), two steps in the halves of one byte (j and j + 4). Fifth bits fill one more line
// of 64 bytes (bit s: step s), fifth and sixth bits two (two bits each: steps 0-3, and 4-7). Float
// formats hold [32, 16] numbers. K formats have scales of 8 cells in front of them.

#pragma once

#include <cstdint>

#include "kernels/bytes.hpp"

namespace paceline {

constexpr int kCell = 32;   // inputs that share scales
constexpr int kSuper = 8;   // cells that share scales of scales

// The numbers of GGUF.
enum class Kind : int32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kBF16 = 30,
};

// How scales are stored: by cell in half precision, or by cell in bytes under halves for 8 cells;
// of Q6_K two signed bytes by cell, for 16 inputs each.
enum class Scales { kHalf, kByte, kTwo };

template <int kBitsOf, Scales kScalesOf, int kZeroOf, bool kMinOf>
struct Quantized {
    static constexpr int kBits = kBitsOf;
    static constexpr Scales kScales = kScalesOf;
    static constexpr int kZero = kZeroOf;  // is subtracted from every code
    static constexpr bool kMin = kMinOf;   // is subtracted from every number
    // Bytes in front of 8 cells.
    static constexpr int kHeader = kScales == Scales::kHalf ? 0 : 2 * kLanes * (kMin ? 2 : 1);
    static constexpr int kScaleBytes = kScales == Scales::kHalf ? 2 * kLanes * (kMin ? 2 : 1) : 2 * kLanes;
    static constexpr int kExtra = kBits == 5 ? 64 : kBits == 6 ? 128 : 0;
    static constexpr int kCodes = kBits == 8 ? 512 : 256;
    static constexpr int kBytes = kScaleBytes + kExtra + kCodes;

    // The codes of a step's part; `at` points behind the scales, and as far into the step.
    template <int kStep>
    static PACELINE_INLINE Bytes step(const uint8_t* at) {
        constexpr int j = kStep % 4;
        if constexpr (kBits == 8) return load_bytes(at + 64 * kStep);
        const Bytes both = load_bytes(at + kExtra + 64 * j);
        const Bytes low = kStep < 4 ? bits<0, 15>(both) : bits<-4, 240>(both);
        if constexpr (kBits == 5) return low | bits<4 - kStep, 1 << kStep>(load_bytes(at));
        if constexpr (kBits == 6) {
            return low | bits<4 - 2 * j, 3 << 2 * j>(load_bytes(at + 64 * (kStep / 4)));
        }
        return low;
    }
};

using Q4_0 = Quantized<4, Scales::kHalf, 8, false>;
using Q4_1 = Quantized<4, Scales::kHalf, 0, true>;
using Q5_0 = Quantized<5, Scales::kHalf, 16, false>;
using Q5_1 = Quantized<5, Scales::kHalf, 0, true>;
using Q8_0 = Quantized<8, Scales::kHalf, 0, false>;
using Q4_K = Quantized<4, Scales::kByte, 0, true>;
using Q5_K = Quantized<5, Scales::kByte, 0, true>;
using Q6_K = Quantized<6, Scales::kTwo, 32, false>;

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
        case Kind::kQ4_K: return some(Q4_K());
        case Kind::kQ5_K: return some(Q5_K());
        case Kind::kQ6_K: return some(Q6_K());
    }
}

constexpr bool is_plain(Kind kind) {
    return kind == Kind::kF32 || kind == Kind::kF16 || kind == Kind::kBF16;
}

// A matrix of tiles.
struct Matrix {
    int64_t outputs, inputs;  // inputs are whole cells, of K formats whole groups of 8
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
