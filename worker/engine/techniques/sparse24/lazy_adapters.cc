#include "worker/engine/techniques/sparse24/lazy_adapters.h"

#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/linear/linear.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

LazyAdapterProducts::LazyAdapterProducts(const LinearLayer& layer,
                                         std::unique_ptr<WeightProducts> of_weights,
                                         const bool* active)
    : of_weights_(std::move(of_weights)), active_(active), compute_(layer.compute) {
  int64_t column = 0;
  for (const OutputWeight& weight : layer.weights) {
    const int64_t a = weight.first_adapter;
    adapters_.push_back({column, weight.rows, (*layer.parameters)[a].shape[0],
                         PackedParameter(layer.parameters, a, compute_),
                         PackedParameter(layer.parameters, a + 1, compute_)});
    column += weight.rows;
  }
}

Status LazyAdapterProducts::Pack(Context& context, Repack what) {
  for (Adapter& adapter : adapters_) {
    WEFT_RETURN_IF_ERROR(adapter.a.Pack(context, what));
    WEFT_RETURN_IF_ERROR(adapter.b.Pack(context, what));
  }
  return of_weights_->Pack(context, what);
}

Result<Tensor> LazyAdapterProducts::Middle(Context& context, const Adapter& adapter,
                                           const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor middle, Tensor::New(context, Component::kWorkspace, compute_,
                                                   {x.shape().Rows(), adapter.rank}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {.x = x, .weight = adapter.a.packed(), .y = middle}));
  return middle;
}

Result<Tensor> LazyAdapterProducts::MiddleGradient(Context& context, const Adapter& adapter,
                                                   const Tensor& dy) const {
  WEFT_ASSIGN_OR_RETURN(Tensor gradient, Tensor::New(context, Component::kWorkspace, compute_,
                                                     {dy.shape().Rows(), adapter.rank}));
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
      context.stream, {.dy = dy.Columns(adapter.column, adapter.columns),
                       .weight = adapter.b.packed(),
                       .dx = gradient}));
  return gradient;
}

Status LazyAdapterProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                                    const GeluValue& active, const ForwardUse& use) const {
  if (!*active_) return of_weights_->Forward(context, x, y, active, use);
  WEFT_RETURN_IF_ERROR(of_weights_->Forward(context, x, y, {}, use));
  for (const Adapter& adapter : adapters_) {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, Middle(context, adapter, x));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = middle,
                                                .weight = adapter.b.packed(),
                                                .y = y.Columns(adapter.column, adapter.columns),
                                                .accumulate = true}));
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Result<OutputGradient> LazyAdapterProducts::Prepare(Context& context, Tensor dy,
                                                    const GradientUse& use) const {
  return of_weights_->Prepare(context, std::move(dy), use);
}

Status LazyAdapterProducts::InputGradient(Context& context, const OutputGradient& dy,
                                          const Tensor& dx, const Tensor& before,
                                          const GeluValue& active) const {
  if (!*active_) return of_weights_->InputGradient(context, dy, dx, before, active);
  WEFT_RETURN_IF_ERROR(of_weights_->InputGradient(context, dy, dx, {}, {}));
  for (const Adapter& adapter : adapters_) {
    WEFT_ASSIGN_OR_RETURN(const Tensor gradient, MiddleGradient(context, adapter, dy.dy));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream,
        {.dy = gradient, .weight = adapter.a.packed(), .dx = dx, .accumulate = true}));
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status LazyAdapterProducts::AdapterGradient(Context& context, const Adapter& adapter,
                                            const Tensor& x, const Tensor& dy,
                                            const WeightGradientTarget& to) const {
  const TensorView &da = to.dtensors[0], &db = to.dtensors[1];
  if (!*active_) {
    for (const TensorView& zero : {da, db}) {
      if (zero && !to.accumulate) WEFT_RETURN_IF_ERROR(Clear(context.stream, zero));
    }
    return OkStatus();
  }
  if (da) {
    WEFT_ASSIGN_OR_RETURN(const Tensor gradient, MiddleGradient(context, adapter, dy));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = x, .dy = gradient, .dweight = da, .accumulate = to.accumulate}));
  }
  if (!db) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor middle, Middle(context, adapter, x));
  return kernels::LinearBackwardWeight(context.stream,
                                       {.x = middle,
                                        .dy = dy.Columns(adapter.column, adapter.columns),
                                        .dweight = db,
                                        .accumulate = to.accumulate});
}

Status LazyAdapterProducts::WeightGradient(Context& context, const Tensor& x,
                                           const OutputGradient& dy,
                                           std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    for (const Adapter& adapter : adapters_) {
      if (to.dtensors.empty() || adapter.column != to.column) continue;
      WEFT_RETURN_IF_ERROR(AdapterGradient(context, adapter, x, dy.dy, to));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_RETURN_IF_ERROR(of_weights_->WeightGradient(context, x, dy, {&to, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
