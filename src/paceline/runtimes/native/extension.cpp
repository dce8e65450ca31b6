// `path_attention` as an OpenVINO operation.

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include "path_attention.hpp"

namespace paceline {

// Inputs: qkv float32 [rows, 1, (heads + 2 * kv_heads) * width]; angles float32 [positions, width];
// memory uint8 [2 * layers * 8], addresses of keys and values of each layer (bytes: the plugin would
// make int32 of int64); rows int32 [rows * 5], tables int32 and singles int32, see Plan; where
// queries and keys are normed, their norms, float32 [width] each.
// Output: float32 [rows, 1, heads * width].
class PathAttention : public ov::op::Op {
   public:
    OPENVINO_OP("PathAttention", "paceline");

    PathAttention() = default;

    void validate_and_infer_types() override {
        auto shape = get_input_partial_shape(0);
        shape[2] = heads_ * width_;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<PathAttention>();
        copy->layer_ = layer_;
        copy->heads_ = heads_;
        copy->kv_heads_ = kv_heads_;
        copy->width_ = width_;
        copy->half_ = half_;
        copy->eps_ = eps_;
        copy->set_arguments(inputs);
        copy->validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("layer", layer_);
        visitor.on_attribute("heads", heads_);
        visitor.on_attribute("kv_heads", kv_heads_);
        visitor.on_attribute("width", width_);
        visitor.on_attribute("half", half_);
        visitor.on_attribute("eps", eps_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const auto rows = inputs[0].get_shape()[0];
        outputs[0].set_shape({rows, 1, size_t(heads_ * width_)});
        const auto norm = [&](size_t i) {
            return inputs.size() > i ? inputs[i].data<float>() : nullptr;
        };
        const auto memory = reinterpret_cast<void* const*>(inputs[2].data<uint8_t>());
        const Shape shape{int(heads_), int(kv_heads_), int(width_), half_, eps_};
        const Layer layer{memory[2 * layer_], memory[2 * layer_ + 1], inputs[1].data<float>(),
                          norm(6), norm(7)};
        const Plan plan{inputs[3].data<int32_t>(), int64_t(rows), inputs[4].data<int32_t>(),
                        inputs[5].data<int32_t>()};
        path_attention(shape, layer, plan, inputs[0].data<float>(), outputs[0].data<float>());
        return true;
    }

   private:
    int64_t layer_ = 0, heads_ = 1, kv_heads_ = 1, width_ = kBlock;
    bool half_ = false;
    float eps_ = 0;
};

}  // namespace paceline

OPENVINO_CREATE_EXTENSIONS(
    std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<paceline::PathAttention>>()}));
