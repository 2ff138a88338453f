#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/status.h"
#include "worker/engine/comm/store.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/run_attempt.h"

namespace weft::trainer {

/// The attempt at one phase of `whole` (JobOfPhase), by the same plan, in its folder (PhaseFolder)
/// and from the weights of the phases before.
AttemptSpec AttemptOfPhase(const AttemptSpec& whole, size_t phase);

/// Runs one phase of `whole`, whose plan is that of the phase. The summary has those of the phases
/// up to this one, too. A job without phases is one attempt. Outcome and errors as RunAttempt.
Result<AttemptOutcome> RunPhase(Env& env, const AttemptSpec& whole, size_t phase,
                                Reporter& reporter, engine::Store& store);

/// Runs the phases of `whole` one after the other, by a plan each. A phase that is complete, as its
/// `summary.json` says, is not run again, except the last one: a run that was stopped goes on
/// where it was. `begin` is called before a phase that is run. Outcome and errors as RunAttempt.
Result<AttemptOutcome> RunPhases(Env& env, const AttemptSpec& whole, const std::vector<Plan>& plans,
                                 const std::function<void(size_t)>& begin, Reporter& reporter,
                                 engine::Store& store);

}  // namespace weft::trainer
