// `path_attention` and `product` as OpenVINO operations.

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include "path_attention.hpp"
#include "product.hpp"

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
        shape[2] = of_.heads * of_.width;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<PathAttention>();
        copy->of_ = of_;
        copy->set_arguments(inputs);
        copy->validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("layer", of_.layer);
        visitor.on_attribute("heads", of_.heads);
        visitor.on_attribute("kv_heads", of_.kv_heads);
        visitor.on_attribute("width", of_.width);
        visitor.on_attribute("half", of_.half);
        visitor.on_attribute("eps", of_.eps);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const auto rows = inputs[0].get_shape()[0];
        outputs[0].set_shape({rows, 1, size_t(of_.heads * of_.width)});
        const auto norm = [&](size_t i) {
            return inputs.size() > i ? inputs[i].data<float>() : nullptr;
        };
        const auto memory = reinterpret_cast<void* const*>(inputs[2].data<uint8_t>());
        const Shape shape{int(of_.heads), int(of_.kv_heads), int(of_.width), of_.half, of_.eps};
        const Layer layer{memory[2 * of_.layer], memory[2 * of_.layer + 1], inputs[1].data<float>(),
                          norm(6), norm(7)};
        const Plan plan{inputs[3].data<int32_t>(), int64_t(rows), inputs[4].data<int32_t>(),
                        inputs[5].data<int32_t>()};
        if (of_.layer == 0) {  // the others get the same rows
            const auto longest = int64_t(inputs[1].get_shape()[0]);
            for (int64_t r = 0; r < plan.count; ++r) {
                OPENVINO_ASSERT(plan.rows[r * kRowFields] < longest,
                                "a row stands behind the longest context of ", longest, " tokens");
            }
        }
        path_attention(shape, layer, plan, inputs[0].data<float>(), outputs[0].data<float>());
        return true;
    }

   private:
    struct {
        int64_t layer = 0, heads = 1, kv_heads = 1, width = kBlock;
        bool half = false;
        float eps = 0;
    } of_;
};

// Inputs: x float32 [rows, 1, inputs], and the residual, float32 [rows, 1, outputs], if there is one.
// Output: float32 [rows, 1, outputs], or half as wide if gated. The matrix stays where it is: its
// addresses are attributes, so that all compiled instances share one copy.
class Product : public ov::op::Op {
   public:
    OPENVINO_OP("Product", "paceline");

    Product() = default;

    void validate_and_infer_types() override {
        auto shape = get_input_partial_shape(0);
        shape[2] = of_.gated ? of_.outputs / 2 : of_.outputs;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<Product>();
        copy->of_ = of_;
        copy->set_arguments(inputs);
        copy->validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("outputs", of_.outputs);
        visitor.on_attribute("inputs", of_.inputs);
        visitor.on_attribute("weights", of_.weights);
        visitor.on_attribute("sums", of_.sums);
        visitor.on_attribute("scales", of_.scales);
        visitor.on_attribute("bias", of_.bias);
        visitor.on_attribute("norm", of_.norm);
        visitor.on_attribute("eps", of_.eps);
        visitor.on_attribute("gated", of_.gated);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const auto rows = inputs[0].get_shape()[0];
        outputs[0].set_shape({rows, 1, size_t(of_.gated ? of_.outputs / 2 : of_.outputs)});
        const Matrix matrix{int(of_.outputs), int(of_.inputs), reinterpret_cast<const int8_t*>(of_.weights),
                            reinterpret_cast<const int16_t*>(of_.sums),
                            reinterpret_cast<const float*>(of_.scales),
                            reinterpret_cast<const float*>(of_.bias)};
        const Step step{matrix, reinterpret_cast<const float*>(of_.norm), of_.eps, of_.gated};
        product(step, int64_t(rows), inputs[0].data<float>(),
                inputs.size() > 1 ? inputs[1].data<float>() : nullptr, outputs[0].data<float>());
        return true;
    }

   private:
    struct {
        int64_t outputs = kGroup, inputs = kGroup;
        int64_t weights = 0, sums = 0, scales = 0, bias = 0, norm = 0;
        float eps = 0;
        bool gated = false;
    } of_;
};

}  // namespace paceline

extern "C" int paceline_has_products() { return paceline::has_products(); }

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>(
    {std::make_shared<ov::OpExtension<paceline::PathAttention>>(),
     std::make_shared<ov::OpExtension<paceline::Product>>()}));
