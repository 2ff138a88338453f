#pragma once

#include <vector>

#include "common/model/technique_cost.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// A copy of everything that this rank updates, in f32, which resides with the state of the
/// optimizer: the weights that a training goes back to. Not thread-safe.
class WeightSnapshot {
 public:
  /// Allocates memory. In checkpoints a copy is called prefix, the name of the parameter, suffix.
  Status Allocate(const TrainingParts& parts, const StateName& name);

  /// Copies the weights as they are now. No update is under way, as in Restore.
  Status Take() const;
  /// Makes the weights what they were at Take.
  Status Restore() const;

  /// For checkpoints.
  std::vector<NamedTensor> Named() const;

 private:
  /// What one optimizer updates.
  struct Place {
    Stream stream;  ///< Where weights and copies are.
    std::vector<ParameterPart> parts;
    OptimizerState copies = {};
  };

  Status Copy(bool back) const;

  std::vector<Place> places_;
};

}  // namespace weft::engine
