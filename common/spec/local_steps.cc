#include "common/spec/local_steps.h"

#include <sstream>

namespace weft {
namespace {

/// A rank waits for the others a day at most (docs/techniques/local_sgd.md).
constexpr int64_t kLongestRoundSeconds = 12 * 3600;

Status CheckRoundSeconds(const TrainSpec& train) {
  if (!TimesRounds(train)) return OkStatus();
  const std::string field = ShownRoundSeconds(train);
  if (train.local_steps > 1) {
    return InvalidError(field + " and train.local_steps " + std::to_string(train.local_steps) +
                        " both say when a round ends; hint: leave one of them out");
  }
  if (train.local_round_seconds <= double{kLongestRoundSeconds}) return OkStatus();
  return InvalidError(field + " is longer than ranks wait for each other; hint: at most " +
                      std::to_string(kLongestRoundSeconds));
}

}  // namespace

std::string ShownRoundSeconds(const TrainSpec& train) {
  std::ostringstream text;
  text << "train.local_round_seconds " << train.local_round_seconds;
  return text.str();
}

Status CheckLocalSteps(const JobSpec& job) {
  const TrainSpec& train = job.train;
  WEFT_RETURN_IF_ERROR(CheckRoundSeconds(train));
  if (!MakesLocalSteps(train)) {
    const TrainSpec defaults;
    if (train.outer_learning_rate == defaults.outer_learning_rate &&
        train.outer_momentum == defaults.outer_momentum) {
      return OkStatus();
    }
    return InvalidError(
        "train.outer_learning_rate and outer_momentum are of the outer steps that "
        "train.local_steps above 1 or train.local_round_seconds makes; hint: train.local_steps 32, "
        "or leave them out");
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
