#include "worker/engine/techniques/gradient_noise_scale/noise_scale.h"

namespace weft::engine {

void NoiseScale::Add(double small, double small_square_norm, double large,
                     double large_square_norm) {
  constexpr double kDecay = 0.99;
  const double square = (large * large_square_norm - small * small_square_norm) / (large - small);
  const double noise = (small_square_norm - large_square_norm) / (1 / small - 1 / large);
  averages_[0] = static_cast<float>(kDecay * averages_[0] + (1 - kDecay) * noise);
  averages_[1] = static_cast<float>(kDecay * averages_[1] + (1 - kDecay) * square);
}

std::optional<double> NoiseScale::Value() const {
  if (averages_[0] <= 0 || averages_[1] <= 0) return std::nullopt;
  return static_cast<double>(averages_[0]) / averages_[1];
}

}  // namespace weft::engine
