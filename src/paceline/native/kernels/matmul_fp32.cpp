#include "kernels/matmul.hpp"

namespace paceline {
namespace {

constexpr int kRows = 6;  // that share loads of weights

// N rows times two blocks of 16 matrix rows, input by input in order.
template <int N>
void two_blocks(const Matrix& matrix, const int64_t (&blocks)[2], Rows<const float> x,
                Vec (&out)[kRows][2]) {
    const float* weights[2];
    for (int b = 0; b < 2; ++b) weights[b] = matrix.floats + blocks[b] * matrix.inputs * kLanes;
    Vec total[N][2] = {};
    for (int64_t k = 0; k < matrix.inputs; ++k) {
        const Vec low = load(weights[0] + k * kLanes), high = load(weights[1] + k * kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < N; ++r) {
            const Vec number = all(x[r][k]);
            total[r][0] += number * low;
            total[r][1] += number * high;
        }
    }
    for (int b = 0; b < 2; ++b) {
        for (int r = 0; r < N; ++r) {
            out[r][b] = total[r][b];
            if (matrix.bias) out[r][b] += load(matrix.bias + blocks[b] * kLanes);
        }
    }
}

}  // namespace

bool has_fp32_matmul() {
#ifdef __AVX512F__
    return true;
#else
    return false;
#endif
}

void matmul_fp32(const MatmulOp& op, int64_t rows, const Input& from, Rows<const float> residual,
                   const Output& out, Scratch& scratch) {
    const Matrix& matrix = op.matrix;
    Rows<const float> x = from.floats;
    if (op.norm) {
        scratch.normed.resize(rows * matrix.inputs);
        each(rows, rows > 16, [&](int64_t r) {
            const float factor = norm_factor(x[r], matrix.inputs, op.eps);
            for (int64_t d = 0; d < matrix.inputs; d += kLanes) {
                store(scratch.normed.data() + r * matrix.inputs + d,
                      load(x[r] + d) * factor * load(op.norm + d));
            }
        });
        x = {scratch.normed.data(), matrix.inputs};
    }
    pairs(op, rows, out, [=, &op](const Pair& pair) {
        by_rows<kRows>(int(rows), [&](auto n, int begin) {
            Vec results[kRows][2];
            two_blocks<n>(op.matrix, pair.blocks, {x[begin], x.stride}, results);
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                pair.leave(op, results[r], more, begin + r);
            }
        });
    });
}

}  // namespace paceline
