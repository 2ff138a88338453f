#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// Contiguous floats of any type on the host.
Result<std::vector<float>> FetchFloats(const Stream& stream, const TensorView& view);

/// The matrices of a training: with ZeRO ranks have successive parts of gradients, and of values
/// too, and gather them where whole matrices are asked for, all ranks together. With tensor
/// parallelism all numbers are those of this rank's rows and columns.
class ShardedMatrices {
 public:
  /// `parts` outlives this.
  explicit ShardedMatrices(const TrainingParts* parts);

  /// The whole value, of any type, as floats.
  Result<std::vector<float>> Value(int64_t parameter) const;
  /// The whole gradient of one that is trained, summed over the ranks.
  Result<std::vector<float>> Gradient(int64_t parameter) const;
  /// All numbers, where `own` are those at the place of HeldGradient.
  Result<std::vector<float>> Whole(int64_t parameter, std::vector<float> own) const;

  /// What this rank has of a number for each element: successive ones.
  using Held = ParameterSet::HeldValue;
  Held HeldValue(int64_t parameter) const { return parts_->parameters->held_value(parameter); }
  Held HeldGradient(int64_t parameter) const;
  /// Whether the elements of HeldGradient are those of HeldValue.
  bool SameParts(int64_t parameter) const {
    return parts_->parameters->values_sharded() || !updated_.contains(parameter);
  }

 private:
  const TrainingParts* parts_;
  std::map<int64_t, ParameterPart> updated_;  ///< Of parameters that this rank updates in part.
};

}  // namespace weft::engine
