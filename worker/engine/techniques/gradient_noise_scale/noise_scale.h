#pragma once

#include <array>
#include <optional>
#include <vector>

#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Estimates the gradient noise scale tr(S) / |G|^2 of McCandlish et al. 2018 (arXiv 1812.06162),
/// the batch beyond which larger ones gain little, from the square norms of the gradients of a
/// small and a large batch in each step (appendix A.1). Averages its two pieces over about a
/// hundred steps before it divides them, since their ratio in one step means little. Its unit is
/// that of the batches. The averages are state, for checkpoints.
class NoiseScale {
 public:
  /// Mean gradients over `small` and `large` (> small) sequences have these square norms.
  void Add(double small, double small_square_norm, double large, double large_square_norm);

  /// None while there is no estimate, or while it says that there is no gradient but noise.
  std::optional<double> Value() const;

  /// On the host, wherever the gradients are.
  std::vector<NamedTensor> StateTensors() {
    return {{"gradient_noise_scale/averages", {averages_.data(), DType::kF32, {2}}}};
  }

 private:
  std::array<float, 2> averages_ = {};  ///< Of tr(S) and of |G|^2, up to the same factor.
};

}  // namespace weft::engine
