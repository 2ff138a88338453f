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
///
/// A phase that grows by msg computes with masks, one that grows by ligo learns an operator, and
/// one with growth.rewarm_steps updates what was added otherwise than the rest: all depend on the
/// sizes that they grew from. So that its job says all of what is trained, `phases` then has one
/// entry: those sizes and the growth of this phase. MaskedGrowthOf, LearnedGrowthOf and
/// RewarmedGrowthOf read it; no job of a user is like this, because no phase before the first one
/// is there to grow from.
JobSpec JobOfPhase(const JobSpec& job, size_t phase);

/// JobOfPhase as it is planned: what it leaves open of offload (open_choices.h) is decided on none
/// where a row of refusals about phases refuses the host (CheckPhaseCompatibility).
JobSpec PlannedJobOfPhase(const JobSpec& job, size_t phase);

/// How the model of a phase has grown.
struct PhaseGrowth {
  ModelSpec before;   ///< The model of the phase before.
  GrowthSpec growth;  ///< Of the phase itself.
};

/// Growth whose new columns, heads, neurons and blocks are masked at first (growth.method msg).
using MaskedGrowth = PhaseGrowth;

/// The masked growth of the job of a phase (JobOfPhase); none for other jobs.
std::optional<MaskedGrowth> MaskedGrowthOf(const JobSpec& job);
/// Likewise growth by an operator that is learned (growth.method ligo).
std::optional<PhaseGrowth> LearnedGrowthOf(const JobSpec& job);
/// Likewise growth whose added rows and columns have updates of their own at first
/// (growth.rewarm_steps).
std::optional<PhaseGrowth> RewarmedGrowthOf(const JobSpec& job);
/// Whether one of these has it.
bool IsOfGrownPhase(const JobSpec& job);
/// Whether the job of a phase with this growth has it in `phases`.
bool SaysWhatItGrewFrom(const GrowthSpec& growth);
/// Makes `job`, which is without phases, that of a phase that has grown so.
void SetPhaseGrowth(const PhaseGrowth& growth, JobSpec& job);

/// growth.optimizer_state, or what auto stands for: kept, new or asymmetric.
std::string_view OptimizerStateOf(const GrowthSpec& growth);

/// The part of what growth has added that computes in step `step` of its phase, from 0: rises
/// linearly from 0 to 1 over growth.ramp_steps.
double ShareOfGrowth(const GrowthSpec& growth, int64_t step);

/// What the updates of rows and columns that growth has added are multiplied by in step `step` of
/// its phase, from 0: rises linearly to growth.rewarm_peak over growth.rewarm_steps, returns to 1
/// over as many, and is 1 from then on.
double UpdateOfAdded(const GrowthSpec& growth, int64_t step);
/// Whether it may be another number than 1 in this step or a later one.
bool IsRewarming(const GrowthSpec& growth, int64_t step);

/// kInvalid, naming the field as `field`, where growth.rewarm_steps do not suit the method or are
/// more than `steps`, those of the phase.
Status CheckRewarmSteps(const std::string& field, const GrowthSpec& growth, int64_t steps);

/// Whether block `block` is one that growth from `before` to `now` blocks, which are no fewer, has
/// added; the others are those of before in their order.
bool IsAddedBlock(const GrowthSpec& growth, int64_t before, int64_t now, int64_t block);

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
/// The title of phase `phase`, from 0, of `count`; `name` may be empty.
std::string PhaseTitle(size_t phase, size_t count, const std::string& name);

/// The phase whose weights decoalesce mixes into those of `phase`: the last one before it with the
/// same sizes. None for other methods, and where growth.alpha 1 leaves nothing of them.
std::optional<size_t> MixedPhase(const JobSpec& job, size_t phase);

/// kInvalid for a job with phases, where one plan is asked for: each phase has its own.
Status CheckOnePhase(const JobSpec& job);

/// Takes a job whose model has the sizes of the folder model.import_path, from which the first
/// phase starts. Writes into each phase the sizes that it has, those that it leaves out being the
/// folder's, and into the model those of the last phase. Changes nothing when it is called again
/// with the folder's sizes. kInvalid when the first phase has other sizes than the folder.
Status SpreadImportedSizes(JobSpec& job);

/// kInvalid, naming the phase, where a row of refusals about phases (Feature::of_phases) refuses
/// phase `phase` of `job`. `own` is its JobOfPhase, as it is or as a plan trains it (JobAsPlanned).
Status CheckPhaseCompatibility(const JobSpec& job, size_t phase, const JobSpec& own);

/// Whether the phases fit each other and each is a valid job. kInvalid names the field, as
/// "phases[2].width": sizes that no growth method makes of those before, a last phase whose sizes
/// are not those of model, or a phase that refuses every valid choice of what the job leaves open
/// (ChoicesOf). Of a job with model.import_path most of it is left out.
Status CheckPhases(const JobSpec& job);

}  // namespace weft
