#pragma once

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "worker/trainer/run_summary.h"

namespace weft::trainer {

/// Whether a phase that is complete, as `summary` says, is the one that the job has now: `attempt`,
/// with the plan of the phase, which has `search`. Compared are its model, optimizer, schedule and
/// training, how it grew and what it chose from, and the fingerprint of its data; not what is
/// measured, logged and saved, nor on what it ran. kInvalid names what differs, or says that its
/// last checkpoint cannot be read. Errors as engine::PrepareDataset.
Status CheckSamePhase(Env& env, AttemptSpec attempt, const PhaseSearchSpec& search,
                      const RunSummary& summary);

}  // namespace weft::trainer
