#include "product.hpp"

#include <cmath>

namespace paceline {

float norm_factor(const float* x, int64_t width, float eps) {
    Vec square = {};
    for (int64_t d = 0; d < width; d += kLanes) square += load(x + d) * load(x + d);
    return 1.0f / std::sqrt(sum(square) / float(width) + eps);
}

void product(const Step& step, int64_t rows, const Input& x, Rows<const float> residual,
             const Output& out, Room& room) {
    const Matrix& matrix = step.matrix;
    const auto whole = matrix.steps ? int4_product : int8_product;
    (matrix.floats ? float_product : whole)(step, rows, x, residual, out, room);
}

}  // namespace paceline
