#include "worker/engine/optim/noise_scale.h"

namespace weft::engine {

Result<std::unique_ptr<NoiseScale>> NoiseScale::New(Context& context) {
  std::unique_ptr<NoiseScale> scale(new NoiseScale());
  scale->state_.Add("gradient_noise_scale/averages", {2});
  WEFT_RETURN_IF_ERROR(scale->state_.Allocate(context));
  return scale;
}

void NoiseScale::Add(double small, double small_square_norm, double large,
                     double large_square_norm) {
  constexpr double kDecay = 0.99;
  const double square = (large * large_square_norm - small * small_square_norm) / (large - small);
  const double noise = (small_square_norm - large_square_norm) / (1 / small - 1 / large);
  float* averages = state_[0];
  averages[0] = static_cast<float>(kDecay * averages[0] + (1 - kDecay) * noise);
  averages[1] = static_cast<float>(kDecay * averages[1] + (1 - kDecay) * square);
}

std::optional<double> NoiseScale::Value() const {
  const float* averages = state_[0];
  if (averages[0] <= 0 || averages[1] <= 0) return std::nullopt;
  return static_cast<double>(averages[0]) / averages[1];
}

}  // namespace weft::engine
