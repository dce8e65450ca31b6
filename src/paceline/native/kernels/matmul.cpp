#include "kernels/matmul.hpp"

#include <cmath>

namespace paceline {

float norm_factor(const float* x, int64_t width, float eps) {
    Vec square = {};
    for (int64_t d = 0; d < width; d += kLanes) square += load(x + d) * load(x + d);
    return 1.0f / std::sqrt(sum(square) / float(width) + eps);
}

void matmul(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
             const Output& out, Scratch& scratch) {
    const Matrix& matrix = op.matrix;
    const auto whole = matrix.steps ? matmul_int4 : matmul_int8;
    (matrix.floats ? matmul_fp32 : whole)(op, rows, x, residual, out, scratch);
}

}  // namespace paceline
