#include "worker/engine/optim/gradient_norm.h"

#include <cmath>

#include "kernels/norm_stat/norm_stat.h"

namespace weft::engine {

Result<GradientNorm> MeasureGradients(Context& context, const ParameterSet& parameters) {
  // The padding between parameters is zero.
  const kernels::NormTensor all{parameters.gradients().As<float>(), parameters.GradientCount()};
  double sum_of_squares = 0;
  GradientNorm result;
  WEFT_RETURN_IF_ERROR(
      kernels::NormStat(context.stream, {std::span(&all, 1), &sum_of_squares, &result.non_finite}));
  result.norm = std::sqrt(sum_of_squares);
  return result;
}

double ClipFactor(double norm, double limit) {
  constexpr double kTiny = 1e-6;  // as PyTorch does, against division by zero
  return limit > 0 && norm > limit ? limit / (norm + kTiny) : 1.0;
}

}  // namespace weft::engine
