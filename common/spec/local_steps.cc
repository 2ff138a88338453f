#include "common/spec/local_steps.h"

namespace weft {

Status CheckLocalSteps(const JobSpec& job) {
  const TrainSpec& train = job.train;
  if (train.local_steps == 1) {
    const TrainSpec defaults;
    if (train.outer_learning_rate == defaults.outer_learning_rate &&
        train.outer_momentum == defaults.outer_momentum) {
      return OkStatus();
    }
    return InvalidError(
        "train.outer_learning_rate and outer_momentum are of the outer steps that "
        "train.local_steps above 1 makes; hint: train.local_steps 32, or leave them out");
  }
  if (train.outer_learning_rate == 0) {
    return InvalidError(
        "train.outer_learning_rate 0 keeps nothing of what the ranks learn; hint: 0.7");
  }
  if (train.outer_momentum == 1) {
    return InvalidError("train.outer_momentum must be below 1; hint: 0.9");
  }
  return OkStatus();
}

}  // namespace weft
