#include "kernels/quantize.hpp"

#include <atomic>
#include <cmath>

namespace paceline {
namespace {

constexpr int kFew = 16;  // rows that every thread makes for itself

void quantize_row(const MatmulOp& op, const float* x, int64_t r, QuantizedRows& to) {
    const int64_t width = op.matrix.inputs;
    const float norm = op.norm ? norm_factor(x, width, op.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int64_t at = g * kGroup + i * kLanes;
            values[i] = load(x + at);
            if (op.norm) values[i] = values[i] * norm * load(op.norm + at);
        }
        quantize_group(values, to.group(g)[r]);
    }
}

// A row that is quantized but for the norm's factor, which all groups make together.
void norm_row(const MatmulOp& op, const QuantizedRows& x, int64_t r, QuantizedRows& to) {
    const int64_t groups = op.matrix.inputs / kGroup;
    float square = 0;
    for (int64_t g = 0; g < groups; ++g) square += x.group(g)[r].square;
    const float norm = 1.0f / std::sqrt(square / float(op.matrix.inputs) + op.eps);
    for (int64_t g = 0; g < groups; ++g) {
        QuantizedGroup& group = to.group(g)[r];
        group = x.group(g)[r];
        group.scale *= norm;
    }
}

void make_row(const MatmulOp& op, const Input& x, int64_t r, QuantizedRows& to) {
    x.quantized ? norm_row(op, *x.quantized, r, to) : quantize_row(op, x.floats[r], r, to);
}

}  // namespace

Quantizer::Quantizer(const MatmulOp& op, int64_t rows, const Input& x, Scratch& scratch)
    : op_(&op), rows_(rows), x_(x) {
    static std::atomic<uint64_t> ops{0};
    if (x.quantized && !op.norm) {
        shared_ = x.quantized;
    } else if (rows <= kFew) {
        op_id_ = ++ops;
    } else {
        shared_ = &scratch.quantized;
        scratch.quantized.fit(rows, op.matrix.inputs);
        each(rows, true, [x, to = &scratch.quantized, of = &op](int64_t r) {
            make_row(*of, x, r, *to);
        });
    }
}

const QuantizedRows& Quantizer::own() const {
    thread_local QuantizedRows quantized;
    thread_local uint64_t op_id = 0;
    if (op_id != op_id_) {
        op_id = op_id_;
        quantized.fit(rows_, op_->matrix.inputs);
        for (int64_t r = 0; r < rows_; ++r) make_row(*op_, x_, r, quantized);
    }
    return quantized;
}

}  // namespace paceline
