#include "worker/engine/nn/dense_products.h"

#include <utility>

#include "kernels/linear/linear.h"

namespace weft::engine {

DenseProducts::DenseProducts(const LinearLayer& layer)
    : parameters_(layer.parameters),
      weight_(layer.parameters, layer.weight, layer.compute, layer.outputs),
      outputs_(layer.outputs),
      bias_(layer.adds_bias ? layer.bias : -1) {}

TensorView DenseProducts::Bias() const {
  return bias_ < 0 ? TensorView() : parameters_->stacked_operand(bias_, outputs_);
}

Status DenseProducts::Pack(Context& context, Repack what) {
  return weight_.Pack(context, what);
}

Status DenseProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                              const GeluValue& active, const ForwardUse& /*use*/) const {
  return kernels::LinearForward(context.stream, {.x = x,
                                                 .weight = weight_.packed(),
                                                 .bias = Bias(),
                                                 .y = y,
                                                 .active = active.value,
                                                 .gelu = active.form});
}

Result<OutputGradient> DenseProducts::Prepare(Context& /*context*/, Tensor dy,
                                              const GradientUse& /*use*/) const {
  return OutputGradient{std::move(dy)};
}

Status DenseProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                    const Tensor& before, const GeluValue& active) const {
  return kernels::LinearBackwardInput(context.stream, {.dy = dy.dy,
                                                       .weight = weight_.packed(),
                                                       .dx = dx,
                                                       .before = before,
                                                       .active = active.value,
                                                       .gelu = active.form});
}

Status DenseProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                     std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardWeight(context.stream, {.x = x,
                                                       .dy = dy.dy.Columns(to.column, to.columns),
                                                       .dweight = to.dweight,
                                                       .dbias = to.dbias,
                                                       .accumulate = to.accumulate}));
  }
  return OkStatus();
}

}  // namespace weft::engine
