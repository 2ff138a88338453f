#include "worker/engine/techniques/structured_matrices/structured_products.h"

#include <algorithm>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/linear/linear.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/techniques/structured_matrices/monarch.h"
#include "worker/engine/techniques/structured_matrices/monarch_values.h"
#include "worker/engine/techniques/structured_matrices/pixelfly.h"
#include "worker/engine/techniques/structured_matrices/pixelfly_values.h"

namespace weft::engine {

StructuredProducts::StructuredProducts(const LinearLayer& layer, StructuredProductsFactory& factory)
    : parameters_(layer.parameters), compute_(layer.compute) {
  int64_t column = 0;
  for (size_t i = 0; i < layer.weights.size(); ++i) {
    const OutputWeight& weight = layer.weights[i];
    Output output{.column = column, .columns = weight.rows, .middle = middle_};
    if (layer.bias >= 0 && layer.adds_bias) output.bias = layer.bias + static_cast<int64_t>(i);
    if (weight.tensors == 0) {
      output.dense.emplace(layer.parameters, weight.first, layer.compute);
    } else {
      output.structured = factory.NewWeight(layer, weight);
      middle_ += output.structured->Middle();
    }
    column += weight.rows;
    outputs_.push_back(std::move(output));
  }
}

Status StructuredProducts::Pack(Context& context, Repack what) {
  for (Output& output : outputs_) {
    WEFT_RETURN_IF_ERROR(output.structured ? output.structured->Pack(context, what)
                                           : output.dense->Pack(context, what));
  }
  return OkStatus();
}

Status StructuredProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                                   const GeluValue& active, const ForwardUse& /*use*/) const {
  for (const Output& output : outputs_) {
    const TensorView bias = output.bias < 0 ? TensorView() : parameters_->operand(output.bias);
    const Tensor own = y.Columns(output.column, output.columns);
    if (output.structured) {
      WEFT_RETURN_IF_ERROR(output.structured->Forward(context, x, bias, own));
    } else {
      WEFT_RETURN_IF_ERROR(kernels::LinearForward(
          context.stream, {.x = x, .weight = output.dense->packed(), .bias = bias, .y = own}));
    }
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Tensor StructuredProducts::MiddleOf(const Output& output, const Tensor& gradients,
                                    int64_t rows) const {
  if (output.structured->Middle() == 0) return {};
  return gradients.Part(static_cast<size_t>(rows * output.middle) * DTypeSize(compute_), compute_,
                        {rows, output.structured->Middle()});
}

Result<OutputGradient> StructuredProducts::Prepare(Context& context, Tensor dy,
                                                   const GradientUse& use) const {
  const int64_t rows = dy.shape().Rows();
  if (middle_ == 0) return OutputGradient{std::move(dy)};
  WEFT_ASSIGN_OR_RETURN(const Tensor gradients,
                        Tensor::New(context, Component::kWorkspace, compute_, {rows, middle_}));
  for (const Output& output : outputs_) {
    if (output.dense || output.structured->Middle() == 0) continue;
    WEFT_RETURN_IF_ERROR(output.structured->MiddleGradient(
        context, dy.Columns(output.column, output.columns), MiddleOf(output, gradients, rows)));
  }
  OutputGradient prepared{std::move(dy)};
  if (use.for_input) prepared.for_input.values = gradients;
  if (use.for_weight) prepared.for_weight.values = gradients;
  return prepared;
}

Status StructuredProducts::InputGradient(Context& context, const OutputGradient& dy,
                                         const Tensor& dx, const Tensor& before,
                                         const GeluValue& active) const {
  const int64_t rows = dx.shape().Rows();
  for (const Output& output : outputs_) {
    const bool accumulate = output.column > 0;
    if (output.structured) {
      WEFT_RETURN_IF_ERROR(output.structured->InputGradient(
          context, dy.dy.Columns(output.column, output.columns),
          MiddleOf(output, dy.for_input.values, rows), dx, accumulate));
      continue;
    }
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = dy.dy.Columns(output.column, output.columns),
                         .weight = output.dense->packed(),
                         .dx = dx,
                         .accumulate = accumulate}));
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

const StructuredProducts::Output& StructuredProducts::At(int64_t column) const {
  return *std::find_if(outputs_.begin(), outputs_.end(),
                       [&](const Output& output) { return output.column == column; });
}

Status StructuredProducts::WeightGradient(Context& context, const Tensor& x,
                                          const OutputGradient& dy,
                                          std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    const Tensor own = dy.dy.Columns(to.column, to.columns);
    if (!to.dtensors.empty() && to.trains_weight()) {
      const Output& output = At(to.column);
      const Tensor middle = MiddleOf(output, dy.for_weight.values, x.shape().Rows());
      WEFT_RETURN_IF_ERROR(output.structured->WeightGradient(context, x, own, middle, to));
      continue;
    }
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardWeight(context.stream, {.x = x,
                                                       .dy = own,
                                                       .dweight = to.dweight,
                                                       .dbias = to.dbias,
                                                       .accumulate = to.accumulate}));
  }
  return OkStatus();
}

std::vector<ParameterInfo> StructuredProductsFactory::ReplacementsOf(
    const ParameterInfo& weight) const {
  if (!IsStructured(model_, weight)) return {};
  return StructuredTensors(model_.structured_matrices, weight);
}

Shard StructuredProductsFactory::ShardOfReplacement(const ParameterInfo& weight,
                                                    const ParameterInfo& tensor,
                                                    const Shard& of_weight) const {
  const StructuredMatricesSpec& spec = model_.structured_matrices;
  if (spec.kind == "pixelfly") {
    return ShardOfPixelfly(PixelflyOf(spec, weight.shape), tensor, of_weight);
  }
  return ShardOfFactor(MonarchOf(spec, weight.shape), tensor.factor, of_weight);
}

std::vector<float> StructuredProductsFactory::WeightFrom(
    const ParameterInfo& weight, const std::vector<std::vector<float>>& tensors) const {
  const StructuredMatricesSpec& spec = model_.structured_matrices;
  if (spec.kind == "pixelfly") return PixelflyMatrix(PixelflyOf(spec, weight.shape), tensors);
  return MonarchMatrix(MonarchOf(spec, weight.shape), tensors[0], tensors[1]);
}

std::vector<std::vector<float>> StructuredProductsFactory::TensorsNearest(
    const ParameterInfo& weight, std::span<const float> values) const {
  const StructuredMatricesSpec& spec = model_.structured_matrices;
  if (spec.kind == "pixelfly") return NearPixelfly(PixelflyOf(spec, weight.shape), values);
  return NearestMonarch(MonarchOf(spec, weight.shape), values);
}

std::unique_ptr<StructuredWeight> StructuredProductsFactory::NewWeight(const LinearLayer& layer,
                                                                       const OutputWeight& weight) {
  const StructuredMatricesSpec& spec = model_.structured_matrices;
  const Parameter& first = (*layer.parameters)[weight.first];
  const std::vector<int64_t> shape = {first.weight_shape[0], first.weight_shape[1]};
  if (spec.kind == "pixelfly") {
    const PixelflySizes size = PixelflyOf(spec, shape);
    const bool columns = EndsSubLayer(first.role);
    std::vector<int64_t> key = shape;
    // Of parts the side that is cut counts, too.
    if (!first.shard.whole()) key.push_back(columns ? 1 : 0);
    for (const Shard::Range& range : first.shard.ranges) {
      key.insert(key.end(), {range.begin, range.end});
    }
    auto pattern = patterns_.find(key);
    if (pattern == patterns_.end()) {
      pattern = patterns_.emplace(key, PatternOf(size, first.shard, columns)).first;
    }
    return std::make_unique<Pixelfly>(layer.parameters, weight.first, &pattern->second, size.rank,
                                      layer.compute);
  }
  return std::make_unique<Monarch>(layer.parameters, weight.first, MonarchOf(spec, shape),
                                   layer.compute);
}

Status StructuredProductsFactory::Allocate(Context& context) {
  for (auto& [shape, pattern] : patterns_) {
    WEFT_RETURN_IF_ERROR(pattern.CopyTo(context.stream.device));
  }
  return OkStatus();
}

std::unique_ptr<WeightProducts> StructuredProductsFactory::Make(const LinearLayer& layer) {
  const bool structured =
      std::any_of(layer.weights.begin(), layer.weights.end(),
                  [](const OutputWeight& weight) { return weight.tensors > 0; });
  if (!structured) return std::make_unique<DenseProducts>(layer);
  return std::make_unique<StructuredProducts>(layer, *this);
}

}  // namespace weft::engine
