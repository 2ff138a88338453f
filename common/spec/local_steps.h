#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether a round ends by the clock (train.local_round_seconds), not after train.local_steps.
inline bool TimesRounds(const TrainSpec& train) {
  return train.local_round_seconds > 0;
}

/// Whether ranks make steps by themselves between outer steps.
inline bool MakesLocalSteps(const TrainSpec& train) {
  return train.local_steps > 1 || TimesRounds(train);
}

/// The last step up to `step`, both counted as steps done, with which ranks that make
/// `train.local_steps` by themselves have come together. The last round is shorter where the steps
/// of the training are no multiple.
inline int64_t LastOuterStep(const TrainSpec& train, int64_t step) {
  return step >= train.steps ? train.steps : step / train.local_steps * train.local_steps;
}

/// Whether something that is to happen every `every_steps` (0: never) happens after step `step`,
/// with which ranks have come together: where one of its steps is since `last`, the step after
/// which they came together before.
inline bool IsDue(int64_t every_steps, int64_t last, int64_t step) {
  return every_steps > 0 && step / every_steps > last / every_steps;
}

/// "train.local_round_seconds 60"
std::string ShownRoundSeconds(const TrainSpec& train);

/// kInvalid names a field of the outer steps that keeps nothing, or that no outer step reads.
Status CheckLocalSteps(const JobSpec& job);

}  // namespace weft
