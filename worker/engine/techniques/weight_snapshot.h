#pragma once

#include <vector>

#include "common/model/technique_cost.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// A copy of everything that this rank updates, in f32, which stays with the state of the
/// optimizer: the weights that a training goes back to. Not thread-safe.
class WeightSnapshot {
 public:
  /// Allocates memory. In checkpoints a copy is called prefix, the name of the parameter, suffix.
  Status Allocate(const TrainingParts& parts, const StateName& name);

  /// Copies the weights as they are now.
  Status Take() const;
  /// Makes the weights what they were at Take.
  Status Restore() const;

  /// For checkpoints.
  std::vector<NamedTensor> Named() const { return copies_.Named(); }

 private:
  Status Copy(bool back) const;

  const Context* context_ = nullptr;
  std::vector<ParameterPart> parts_;  ///< That this rank updates.
  OptimizerState copies_;
};

}  // namespace weft::engine
