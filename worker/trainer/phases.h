#pragma once

#include <cstddef>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/status.h"
#include "worker/engine/comm/store.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/run_attempt.h"

namespace weft::trainer {

/// The attempt at one phase of `whole` (JobOfPhase), without a plan. The last phase has the folder
/// of the whole run, so that what it comes to is where the result of a job is; the others have
/// `phase-1`, `phase-2`, ... in it.
AttemptSpec AttemptOfPhase(const AttemptSpec& whole, size_t phase);

/// Runs the phases of `whole` one after the other, of which `attempts` are those at each phase
/// (AttemptOfPhase) with their plans. A phase that is complete, as its `summary.json` says, is not
/// run again: a run that was stopped goes on where it was. The summary of the last phase then has
/// all of them. A job without phases is one attempt. Outcome and errors as RunAttempt.
Result<AttemptOutcome> RunPhases(Env& env, const AttemptSpec& whole,
                                 const std::vector<AttemptSpec>& attempts, Reporter& reporter,
                                 engine::Store& store);

}  // namespace weft::trainer
