#include "common/spec/local_steps.h"

#include <string>
#include <utility>

namespace weft {

Status CheckLocalSteps(const JobSpec& job) {
  const TrainSpec& train = job.train;
  const ResourceSpec& resources = job.resources;
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
  const std::string field = "train.local_steps " + std::to_string(train.local_steps);
  const std::pair<const char*, bool> others[] = {
      {"resources.zero_stage, whose ranks need each other in every step", resources.zero_stage > 0},
      {"resources.expert_parallel, whose ranks need each other in every step",
       resources.expert_parallel > 1},
      {"resources.try_plans, since another number of ranks is another training",
       resources.try_plans > 1},
      {"resources.delayed_update yet", resources.delayed_update},
      {"model.over_parameterization yet", job.model.over_parameterization.kind != "none"},
      {"train.averaging, which would average what one rank has learned",
       train.averaging.kind != "none"},
      {"optimizer.name schedule_free_adamw, whose averages are of one rank",
       job.optimizer.name == "schedule_free_adamw"},
      {"train.gradient_noise_scale, which compares gradients that ranks sum",
       train.gradient_noise_scale},
      {"train.guard.spike_deviations, which compares losses of all ranks",
       train.guard.spike_deviations > 0},
  };
  for (const auto& [name, asked] : others) {
    if (asked) {
      return InvalidError(field + " does not go with " + name + "; hint: leave one of them out");
    }
  }
  return OkStatus();
}

}  // namespace weft
