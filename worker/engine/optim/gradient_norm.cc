#include "worker/engine/optim/gradient_norm.h"

namespace weft::engine {

Status Measure(Context& context, const std::vector<kernels::NormTensor>& tensors, NormSums* sums) {
  return kernels::NormStat(context.stream, {tensors, &sums->squares, &sums->non_finite});
}

kernels::NormTensor NormTensorOf(const TensorView& view) {
  const bool f32 = view.dtype == DType::kF32;
  return {f32 ? view.As<float>() : nullptr, view.shape.Elements(),
          f32 ? nullptr : view.As<BFloat16>()};
}

Status MeasureGradients(Context& context, const ParameterSet& parameters,
                        std::span<const ParameterPart> parts, NormSums* sums) {
  std::vector<kernels::NormTensor> tensors;
  for (const ParameterPart& part : parts) {
    if (parameters.CountsPart(part.index)) tensors.push_back(NormTensorOf(part.gradient));
  }
  return Measure(context, tensors, sums);
}

Status MeasureGradients(Context& context, const ParameterSet& parameters, NormSums* sums) {
  // Without factors everything in the buffer counts, the padding being zero.
  if (parameters.factoring() == Factoring::kNone && !parameters.sharded() &&
      !parameters.of_stage()) {
    return Measure(context, {NormTensorOf(parameters.gradients())}, sums);
  }
  std::vector<kernels::NormTensor> tensors;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].updated() || !parameters.Counts(i)) continue;
    tensors.push_back(NormTensorOf(parameters.gradient(i)));
  }
  return Measure(context, tensors, sums);
}

}  // namespace weft::engine
