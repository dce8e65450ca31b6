// Matmul of few rows, fused with the RMS norm before and the residual or gate after it.
//
// Each row is summed in one order, so its result is bit-identical in any batch. int8 and int4
// matrices take activations quantized in groups of 64.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads/pool.hpp"
#include "kernels/quantized.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

// A packed matrix of `outputs` rows, a multiple of 16; of int8, `inputs` is a multiple of 64.
struct Matrix {
    int64_t outputs, inputs;
    // [pairs, inputs / 4, 2, 16, 4]: blocks of 16 rows in pairs, so that memory is read in order.
    // 128 is added, since the instruction needs one unsigned operand.
    const uint8_t* weights;
    const float* scales;  // [outputs]
    const float* floats;  // [outputs / 16, inputs, 16] instead of all these, or null
    const float* bias;    // [outputs], or null
    int64_t often;        // whether it is read several times in a row
    int64_t gated;        // whether it has gates in its upper half, and in its lower what they gate
    // int4: scale of each group, [outputs / 16, inputs / 64, 16]; else null. 8 is added, not 128.
    // Byte k of a group, [outputs / 16, inputs / 64, 8, 16, 4], holds columns k and k + 32 (high).
    const _Float16* steps;

    const void* numbers() const { return floats ? static_cast<const void*>(floats) : weights; }
    int64_t bytes() const { return outputs * inputs * (floats ? 8 : steps ? 1 : 2) / 2; }
};

// out = matmul(norm(x)) + residual, or of a gated matrix out = silu(gates) * others.
struct MatmulOp {
    Matrix matrix;
    const float* norm;  // [inputs], RMS norm of x before the matmul, or null
    float eps;
};

// Memory reused from matmul to matmul.
struct Scratch {
    QuantizedRows quantized;
    std::vector<float> normed;  // [rows, inputs]
};

// AVX-512F.
bool has_fp32_matmul();

// AVX512_VNNI, needed for int8 and int4.
bool has_int8_matmul();

//   x:        [rows, inputs]; quantized for the norm of `op`, if it has one
//   residual: [rows, outputs], or none; may be `out`
//   out:      [rows, outputs], half as wide if gated
void matmul(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
             const Output& out, Scratch& scratch);

void matmul_int8(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
                  const Output& out, Scratch& scratch);
void matmul_int4(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
                  const Output& out, Scratch& scratch);
void matmul_fp32(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
                   const Output& out, Scratch& scratch);

// RMS norm factor of a row, without the weights.
float norm_factor(const float* x, int64_t width, float eps);

// Two blocks of matrix rows computed together, and their destination from column `begin` on.
struct Pair {
    int64_t number, blocks[2], begin;
    Rows<float> columns;

    // Writes the results of a row.
    void leave(const MatmulOp& op, const Vec (&results)[2], const float* residual, int64_t row) const {
        float* out = columns[row];
        if (op.matrix.gated) {
            const Vec gate = results[0], value = gate / (exponential(-gate) + 1.0f) * results[1];
            store(out + blocks[0] * kLanes - begin, value);
            return;
        }
        for (int b = 0; b < (blocks[1] == blocks[0] ? 1 : 2); ++b) {
            const int64_t at = blocks[b] * kLanes;
            store(out + at - begin, residual ? results[b] + load(residual + at) : results[b]);
        }
    }
};

// Calls `some` with all pairs, on all threads; of an odd number of blocks the last pairs with
// itself. The thread that completes a group of 64 quantizes it: int8 is less for other cores to
// fetch.
template <class Some>
void pairs(const MatmulOp& op, int64_t rows, const Output& out, const Some& some) {
    const int64_t blocks = op.matrix.outputs / kLanes, count = (blocks + 1) / 2;
    const int64_t width = op.matrix.outputs / (op.matrix.gated ? 2 : 1);
    const int64_t groups = width / kGroup, units = out.quantized ? groups : count;
    const int64_t parts = std::min<int64_t>(units, 6 * Pool::shared().threads());
    each(parts, true, [=, gated = op.matrix.gated != 0](int64_t part) {
        thread_local std::vector<float> tile;
        if (out.quantized) tile.resize(rows * kGroup);
        for (int64_t u = part * units / parts; u < (part + 1) * units / parts; ++u) {
            Pair pair{0, {}, 0, out.floats};
            if (out.quantized) {
                pair.begin = u * kGroup;
                pair.columns = {tile.data(), kGroup};
            }
            for (int64_t p = u * count / units; p < (u + 1) * count / units; ++p) {
                pair.number = p;
                pair.blocks[0] = gated ? p : 2 * p;
                pair.blocks[1] = gated ? p + blocks / 2 : std::min(2 * p + 1, blocks - 1);
                some(pair);
                // Two threads may share a group: the last one quantizes it.
                const int64_t g = out.normed ? p * groups / count : 0, at = g * kGroup;
                if (!out.normed || !out.normed->part_done(g, count / groups)) continue;
                for (int64_t r = 0; r < rows; ++r) {
                    quantize_group(out.floats[r] + at, out.weights + at, out.normed->group(g)[r]);
                }
            }
            for (int64_t r = 0; out.quantized && r < rows; ++r) {
                quantize_group(tile.data() + r * kGroup, out.quantized->group(u)[r]);
            }
        }
    });
}

}  // namespace paceline
