#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// Contiguous floats of any type on the host.
Result<std::vector<float>> FetchFloats(const Stream& stream, const TensorView& view);

/// The matrices of a training, all numbers of each here: with ZeRO ranks have successive parts of
/// gradients, and of values too, and gather them. With tensor parallelism all numbers are those of
/// this rank's rows and columns. What returns vectors all ranks call together.
class ShardedMatrices {
 public:
  /// `parts` outlives this.
  explicit ShardedMatrices(const TrainingParts* parts);

  /// The value, of any type, as floats.
  Result<std::vector<float>> Value(int64_t parameter) const;
  /// The gradient of one that is trained, summed over the ranks.
  Result<std::vector<float>> Gradient(int64_t parameter) const;

  /// What this rank has of a number for each element: successive ones.
  using Held = ParameterSet::HeldValue;
  Held HeldValue(int64_t parameter) const { return parts_->parameters->held_value(parameter); }
  Held HeldGradient(int64_t parameter) const;

 private:
  const TrainingParts* parts_;
  std::map<int64_t, ParameterPart> updated_;  ///< Of parameters that this rank updates in part.
};

}  // namespace weft::engine
