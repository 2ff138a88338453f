#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Angle by which one position rotates each pair of a head of `head_dim`: theta^(-2j / head_dim)
/// (Su et al. 2021, arXiv 2104.09864), stretched for longer contexts as `scaling` says: "linear"
/// divides all of them by its factor, "llama3" the low frequencies, with a ramp up to the high ones
/// (Llama Team 2024, arXiv 2407.21783).
std::vector<double> RotaryFrequencies(int64_t head_dim, double theta,
                                      const RopeScalingSpec& scaling);

/// Cosines and sines of the angles of all positions of a model, for all its layers.
class RotaryTable {
 public:
  RotaryTable(int64_t context, std::vector<double> frequencies)
      : context_(context), frequencies_(std::move(frequencies)) {}

  /// Computes the table on the first call.
  Status Prepare(Context& context);

  /// Rotates the heads of x [tokens, heads * head_dim] in place by their positions [tokens], or
  /// back.
  Status Rotate(Context& context, const Tensor& x, const Tensor& positions, bool inverse) const;

 private:
  int64_t context_;
  std::vector<double> frequencies_;
  Tensor cosines_;  ///< [context, head_dim / 2] f32
  Tensor sines_;
};

}  // namespace weft::engine
