#include "worker/engine/optim/gradient_norm.h"

#include <cmath>
#include <vector>

#include "kernels/norm_stat/norm_stat.h"

namespace weft::engine {
namespace {

std::vector<kernels::NormTensor> UpdatedGradients(const ParameterSet& parameters) {
  // Without factors everything in the buffer counts, the padding being zero.
  if (parameters.factoring() == Factoring::kNone) {
    return {{parameters.gradients().As<float>(), parameters.GradientCount()}};
  }
  std::vector<kernels::NormTensor> tensors;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].updated()) continue;
    const TensorView gradient = parameters.gradient(i);
    tensors.push_back({gradient.As<float>(), gradient.shape.Elements()});
  }
  return tensors;
}

}  // namespace

Result<GradientNorm> MeasureGradients(Context& context, const ParameterSet& parameters) {
  const std::vector<kernels::NormTensor> tensors = UpdatedGradients(parameters);
  double sum_of_squares = 0;
  GradientNorm result;
  WEFT_RETURN_IF_ERROR(
      kernels::NormStat(context.stream, {tensors, &sum_of_squares, &result.non_finite}));
  result.norm = std::sqrt(sum_of_squares);
  return result;
}

double ClipFactor(double norm, double limit) {
  constexpr double kTiny = 1e-6;  // as PyTorch does, against division by zero
  return limit > 0 && norm > limit ? limit / (norm + kTiny) : 1.0;
}

}  // namespace weft::engine
