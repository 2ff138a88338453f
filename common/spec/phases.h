#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

// Phases of a job (JobSpec::phases), each a training of its own. All functions are pure.

/// Phases of a job; 1 where it names none.
size_t PhaseCount(const JobSpec& job);

/// The job of one phase, without phases: its sizes, steps, batch and schedule in place of those of
/// the whole. Of a job without phases itself.
JobSpec JobOfPhase(const JobSpec& job, size_t phase);

/// The name of a phase for people: "phase 2 of 3 (wide)".
std::string PhaseTitle(const JobSpec& job, size_t phase);

/// The phase whose weights decoalesce mixes into those of `phase`: the last one before it with the
/// same sizes. None for other methods, and where growth.alpha 1 leaves nothing of them.
std::optional<size_t> MixedPhase(const JobSpec& job, size_t phase);

/// kInvalid for a job with phases, where only a job without them, or one of its phases, can be
/// planned or run.
Status CheckOnePhase(const JobSpec& job);

/// Whether the phases fit each other and each is a valid job. kInvalid names the field, as
/// "phases[2].width": sizes that no growth method makes of those before, or a last phase whose
/// sizes are not those of model.
Status CheckPhases(const JobSpec& job);

}  // namespace weft
