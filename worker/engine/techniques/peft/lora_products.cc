#include "worker/engine/techniques/peft/lora_products.h"

#include <algorithm>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "worker/engine/techniques/peft/peft_cost.h"

namespace weft::engine {

LoraProducts::LoraProducts(const LinearLayer& layer, const PeftSpec& spec)
    : compute_(layer.compute),
      rank_(spec.rank),
      scale_(static_cast<float>(LoraScale(spec))),
      dense_(layer) {
  int64_t column = 0;
  for (const OutputWeight& weight : layer.weights) {
    if (weight.adapters > 0) {
      adapters_.push_back(
          {.column = column,
           .columns = weight.rows,
           .a = PackedParameter(layer.parameters, weight.first_adapter, layer.compute),
           .b = PackedParameter(layer.parameters, weight.first_adapter + 1, layer.compute)});
    }
    column += weight.rows;
  }
}

Status LoraProducts::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(dense_.Pack(context, what));
  for (Adapter& adapter : adapters_) {
    WEFT_RETURN_IF_ERROR(adapter.a.Pack(context, what));
    WEFT_RETURN_IF_ERROR(adapter.b.Pack(context, what));
  }
  return OkStatus();
}

Status LoraProducts::Scaled(Context& context, const Tensor& x) const {
  return scale_ == 1 ? OkStatus() : kernels::Scale(context.stream, {x, scale_});
}

Result<Tensor> LoraProducts::MiddleOf(Context& context, const Adapter& adapter,
                                      const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor middle, Tensor::New(context, Component::kWorkspace, compute_,
                                                   {x.shape().Rows(), rank_}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {.x = x, .weight = adapter.a.packed(), .y = middle}));
  WEFT_RETURN_IF_ERROR(Scaled(context, middle));
  return middle;
}

Status LoraProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                             const GeluValue& active, bool training) const {
  WEFT_RETURN_IF_ERROR(dense_.Forward(context, x, y, {}, training));
  for (const Adapter& adapter : adapters_) {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, adapter, x));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = middle,
                                                .weight = adapter.b.packed(),
                                                .y = y.Columns(adapter.column, adapter.columns),
                                                .accumulate = true}));
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Tensor LoraProducts::MiddleGradientOf(const Adapter& adapter, const Tensor& gradients,
                                      int64_t rows) const {
  const int64_t before = (&adapter - adapters_.data()) * rows * rank_;
  return gradients.Part(static_cast<size_t>(before) * DTypeSize(compute_), compute_, {rows, rank_});
}

Result<OutputGradient> LoraProducts::Prepare(Context& context, Tensor dy,
                                             const GradientUse& use) const {
  const int64_t rows = dy.shape().Rows();
  WEFT_ASSIGN_OR_RETURN(
      const Tensor gradients,
      Tensor::New(context, Component::kWorkspace, compute_, {rows, std::ssize(adapters_) * rank_}));
  for (const Adapter& adapter : adapters_) {
    const Tensor own = MiddleGradientOf(adapter, gradients, rows);
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = dy.Columns(adapter.column, adapter.columns),
                         .weight = adapter.b.packed(),
                         .dx = own}));
    WEFT_RETURN_IF_ERROR(Scaled(context, own));
  }
  OutputGradient prepared{std::move(dy)};
  if (use.for_input) prepared.for_input.values = gradients;
  if (use.for_weight) prepared.for_weight.values = gradients;
  return prepared;
}

Status LoraProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                   const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(dense_.InputGradient(context, dy, dx, {}, {}));
  const int64_t rows = dx.shape().Rows();
  for (const Adapter& adapter : adapters_) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = MiddleGradientOf(adapter, dy.for_input.values, rows),
                         .weight = adapter.a.packed(),
                         .dx = dx,
                         .accumulate = true}));
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status LoraProducts::FactorGradients(Context& context, const Adapter& adapter, const Tensor& x,
                                     const OutputGradient& dy,
                                     const WeightGradientTarget& to) const {
  if (to.dtensors[0]) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = x,
                         .dy = MiddleGradientOf(adapter, dy.for_weight.values, x.shape().Rows()),
                         .dweight = to.dtensors[0],
                         .accumulate = to.accumulate}));
  }
  if (!to.dtensors[1]) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, adapter, x));
  CountWork(context.profiler, 2.0 * static_cast<double>(x.shape().Rows() * rank_ * x.shape()[-1]));
  return kernels::LinearBackwardWeight(context.stream, {.x = middle,
                                                        .dy = dy.dy.Columns(to.column, to.columns),
                                                        .dweight = to.dtensors[1],
                                                        .accumulate = to.accumulate});
}

Status LoraProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    const auto adapter = std::find_if(adapters_.begin(), adapters_.end(), [&](const Adapter& each) {
      return each.column == to.column;
    });
    if (!to.dtensors.empty() && adapter != adapters_.end()) {
      WEFT_RETURN_IF_ERROR(FactorGradients(context, *adapter, x, dy, to));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_RETURN_IF_ERROR(dense_.WeightGradient(context, x, dy, {&to, 1}));
  }
  return OkStatus();
}

std::vector<ParameterInfo> LoraProductsFactory::AdaptersOf(const ParameterInfo& weight) const {
  if (!IsTarget(model_, weight)) return {};
  return LoraFactors(model_.peft, weight);
}

std::vector<float> LoraProductsFactory::Merged(
    const ParameterInfo& weight, std::span<const float> values,
    const std::vector<std::vector<float>>& tensors) const {
  const int64_t out = weight.shape[0], in = weight.shape[1], rank = model_.peft.rank;
  const double scale = LoraScale(model_.peft);
  std::vector<float> merged(values.size());
  kernels::cpu::ParallelForDynamic(out, [&](int64_t row) {
    std::vector<double> sum(static_cast<size_t>(in), 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = scale * tensors[1][static_cast<size_t>(row * rank + k)];
      const float* const from = &tensors[0][static_cast<size_t>(k * in)];
      for (int64_t i = 0; i < in; ++i) sum[static_cast<size_t>(i)] += factor * from[i];
    }
    for (int64_t i = 0; i < in; ++i) {
      const auto at = static_cast<size_t>(row * in + i);
      merged[at] = static_cast<float>(values[at] + sum[static_cast<size_t>(i)]);
    }
  });
  return merged;
}

std::unique_ptr<WeightProducts> LoraProductsFactory::Make(const LinearLayer& layer) {
  const bool adapted = std::any_of(layer.weights.begin(), layer.weights.end(),
                                   [](const OutputWeight& weight) { return weight.adapters > 0; });
  if (!adapted) return std::make_unique<DenseProducts>(layer);
  return std::make_unique<LoraProducts>(layer, model_.peft);
}

}  // namespace weft::engine
