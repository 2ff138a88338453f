#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

// Phases of a job (JobSpec::phases), each a training of its own. All functions are pure.

/// Phases of a job; 1 where it names none.
size_t PhaseCount(const JobSpec& job);

/// The job of one phase, without phases: its sizes, steps, batch and schedule in place of those of
/// the whole. Of a job without phases itself.
JobSpec JobOfPhase(const JobSpec& job, size_t phase);

/// Optimizer steps of the phases before `phase`; with PhaseCount(job), of all.
int64_t StepsBefore(const JobSpec& job, size_t phase);

/// The whole job with train.steps at the end of `phase`: the order to run that phase.
JobSpec JobThrough(const JobSpec& job, size_t phase);

/// The phase at whose end train.steps of a JobThrough is; 0 without phases. kInternal when no phase
/// ends there.
Result<size_t> PhaseToRun(const JobSpec& job);

/// Where in the run folder of the job a phase has its checkpoints and its loss curve. The last one
/// has the run folder itself, so that what it comes to is where the result of a job is; the others
/// have `phase-1`, `phase-2`, ... in it.
std::string PhaseFolder(const JobSpec& job, size_t phase, const std::string& run_dir);

/// Whether a folder in a run folder has the name of a phase's.
bool IsPhaseFolder(std::string_view name);

/// Floating-point operations of one optimizer step of a JobOfPhase, as far as it says what a step
/// is (ShapeOf).
double StepFlops(const JobSpec& phase);

/// The name of a phase for people: "phase 2 of 3 (wide)".
std::string PhaseTitle(const JobSpec& job, size_t phase);
/// The same of a phase, from 0, of so many; its own name may be empty.
std::string PhaseTitle(size_t phase, size_t count, const std::string& name);

/// The phase whose weights decoalesce mixes into those of `phase`: the last one before it with the
/// same sizes. None for other methods, and where growth.alpha 1 leaves nothing of them.
std::optional<size_t> MixedPhase(const JobSpec& job, size_t phase);

/// kInvalid for a job with phases, where one plan is asked for: each phase has its own.
Status CheckOnePhase(const JobSpec& job);

/// Whether the phases fit each other and each is a valid job. kInvalid names the field, as
/// "phases[2].width": sizes that no growth method makes of those before, or a last phase whose
/// sizes are not those of model.
Status CheckPhases(const JobSpec& job);

}  // namespace weft
