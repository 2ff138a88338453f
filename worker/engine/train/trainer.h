#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/local_steps.h"
#include "common/spec/plan.h"
#include "worker/engine/techniques/technique_list.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/batch_loader.h"
#include "worker/engine/train/device_weights.h"
#include "worker/engine/train/local_rounds.h"
#include "worker/engine/train/micro_batch_sums.h"
#include "worker/engine/train/offloaded_updates.h"
#include "worker/engine/train/part_losses.h"
#include "worker/engine/train/replay_check.h"
#include "worker/engine/train/round_members.h"
#include "worker/engine/train/sequence_passes.h"
#include "worker/engine/train/state_context.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/step_launcher.h"
#include "worker/engine/train/step_memory.h"
#include "worker/engine/train/step_passes.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/step_totals.h"
#include "worker/engine/train/timed_round.h"
#include "worker/engine/train/trainer_parts.h"
#include "worker/engine/train/training_ranks.h"
#include "worker/engine/train/updaters.h"

namespace weft::engine {

/// What plan and job say to the model.
ModelOptions ModelOptionsOf(const Plan& plan, const TrainSpec& train = {});

/// Trains a model as the job says what and the plan says how. Its whole state is StateTensors() and
/// counters(): with both restored a run goes on bit for bit as if it had never stopped. Not
/// thread-safe.
class Trainer {
 public:
  /// kInvalid when job and plan do not fit each other: batch sizes, ranks, precision.
  static Result<std::unique_ptr<Trainer>> New(const JobSpec& job, const Plan& plan,
                                              const TrainerParts& parts);

  /// One optimizer step: accumulation_steps micro-batches forward and backward, the sum over ranks,
  /// clipping, update. A loss or gradient that is not finite, or a spike of the loss (train.guard),
  /// skips the update on all ranks. After an error the state is as before the step, or the update
  /// is complete but not counted. With train.local_steps all this is of this worker alone, except
  /// the steps at whose end AtOuterStep: those report all workers (LocalRounds). With
  /// train.local_round_seconds it is a local step, and what is reported at an outer step is of all
  /// steps of the round.
  Result<StepReport> Step();

  /// What a step that failed has found with train.replay_every_steps; none: it failed otherwise.
  const std::optional<WrongBits>& wrong_bits() const { return wrong_bits_; }

  /// Whether all ranks are at the same weights, and so may evaluate and save: after each step, with
  /// train.local_steps after each outer step.
  bool AtOuterStep() const {
    return timed_ != nullptr ? timed_->at_start()
                             : counters_.step == LastOuterStep(job_.train, counters_.step);
  }

  // Rounds by time whose ranks come and go (round_members.h).

  /// How far this rank is.
  RoundPosition position() const { return timed_->position(); }
  /// What a rank that is behind needs besides StateTensors(), at an outer step.
  std::span<const double> round_speeds() const { return timed_->speeds(); }

  /// Ranks have come together anew: `outer` sums over them, and `members` are those of the next
  /// rounds; `positions` are of all of them, by rank. Where some are amid a round they make the
  /// outer step, which is reported, and this rank is at one then. Those that are behind call
  /// TakeOver next. After an error of the ranks it can be called again, with others.
  Result<std::optional<StepReport>> Regroup(GradientReducer* outer, const RoundMembers& members,
                                            std::span<const RoundPosition> positions);

  /// StateTensors() have been overwritten with those of a rank at `source`, or those that all ranks
  /// have alike; the rest comes from that rank, too.
  Status TakeOver(const RoundPosition& source, std::vector<double> speeds,
                  const TrainCounters& counters);

  /// Differentiates the loss of the batch of the step that is about to begin, at the values that
  /// the parameters have, and neither updates them nor counts a step. Their gradients become those
  /// of the mean loss of all ranks, who all ask, times `loss_scale` of the report, which has the
  /// loss and the tokens, too.
  Result<StepReport> Differentiate();

  /// Mean loss over the job's evaluation sequences, all ranks together, of the averaged weights
  /// where the job has them. kNotFound without validation data.
  Result<EvaluationReport> Evaluate();

  /// The same over the first `batches` batches of these training data.
  Result<EvaluationReport> EvaluateTraining(BatchSource* train, int64_t batches);

  /// Whether all weights of this rank, and of its tensor-parallel, expert-parallel and shard
  /// groups, are finite. An update can make one NaN or infinite although loss and gradients were
  /// finite. All of these ranks call it. Reads every weight once.
  Result<bool> WeightsAreFinite();

  /// Steps so far that were launched as graphs.
  int64_t graph_steps() const { return launcher_.launched(); }

  /// PipelineRun::peak_in_flight of the last step in a pipeline.
  int64_t peak_in_flight() const { return passes_.peak_in_flight(); }

  const TrainCounters& counters() const { return counters_; }
  bool finished() const { return counters_.step >= job_.train.steps || techniques_.Finished(); }

  /// Waits for an update under way, and for weights on their way to the device.
  Status FinishUpdates() { return offloaded_ != nullptr ? offloaded_->Finish() : OkStatus(); }

  /// Parameters under their own names, then the state of optimizer and averages. With
  /// train.local_steps each rank has an optimizer's state of its own, under names that begin with
  /// "rank/<rank>/" except those of rank 0; or, given the ranks of a checkpoint, under those of
  /// the rank with whose state this one goes on, its own number modulo `saved_ranks`. After a step
  /// FinishUpdates() comes first: what is under way reads and writes them.
  std::vector<NamedTensor> StateTensors(int64_t saved_ranks = 0);

  /// StateTensors() have been overwritten with the state that belongs to `counters`. After an error
  /// the state is neither this nor the one before.
  Status Restored(const TrainCounters& counters);

 private:
  Trainer(const JobSpec& job, const Plan& plan, const TrainerParts& parts);

  // Before the first step.

  /// Has losses and gradients summed by micro-batch, with train.deterministic mesh.
  Status SumByMicroBatch();
  /// Gives techniques what they work with, once the updaters are there.
  Status StartTechniques();
  /// Why steps are enqueued operation by operation, or "".
  std::string_view WhyNoGraphs() const;

  // In the order of a step.

  StepReport NewReport() const;
  /// Loads the micro-batches, sums their targets and tokens over the ranks, and agrees with these
  /// on how the step is done. `alone`: no other step is as this one.
  Result<StepBatches> TakeBatches(bool alone, StepReport& report);
  /// Where train.replay_every_steps has come: computes the first micro-batch twice. kInternal where
  /// the bits differ (wrong_bits).
  Status Replay(const StepBatches& batches, StepReport& report);
  /// Brings the numbers of the step to where its operations read them.
  Status SendNumbers(const StepReport& report);
  /// Enqueues the work of the step, or its graphs.
  Status RunStep(std::vector<TokenBatch> batches, bool loss_fails, StepReport& report);
  /// Runs TrainingParts::compute_gradients, with the loss scale of `report`.
  Status ComputeGradients(StepReport& report);
  /// Runs TrainingParts::begin_anew.
  Status BeginAnew();
  /// Enqueues all up to the gradients, summed over the ranks.
  Status EnqueueGradients(std::vector<TokenBatch> batches, StepReport& report);
  /// Enqueues all that follows from the gradients, up to the packed weights of the next step.
  Status EnqueueUpdate(StepReport& report);
  /// Waits for what was measured, and draws the conclusions.
  Status FinishUpdate(StepReport& report);
  void UpdateLossScale(StepReport& report);
  Status EndStepOfTechniques(const StepBatches& batches, StepReport& report);
  void CountStep(const StepReport& report);
  /// Counts the local step of `report`, and where it ends a round makes the outer step.
  Status FinishRound(StepReport& report);
  /// Whether the local step of `report` was the last of its round, which it then reports.
  bool RoundEnds(StepReport& report);
  /// Makes the outer step that ends the round of `report`, which becomes one of all ranks. All of
  /// it is done, or after an error of the ranks nothing.
  Status MakeOuterStep(StepReport& report);

  bool on_gpu() const { return parts_.context->stream.device.type == DeviceType::kCuda; }
  /// Whether the host sums the losses before the update: other ranks have some.
  bool SumsLosses() const { return parts_.reducer != nullptr || parts_.pipeline != nullptr; }
  /// Whether a technique does something else in this step than to update.
  bool ReplacesUpdate() const { return techniques_.ReplacesUpdate(counters_.step); }
  bool MeasuresGroups() const { return (counters_.step + 1) % job_.train.log_every_steps == 0; }
  float GradientScale(const StepReport& report) const;
  ScheduledStep Scheduled(int64_t step) const {
    return techniques_.Scheduled({.step = step, .steps = job_.train.steps});
  }
  BatchLoader::Request BatchesOf(int64_t step) const;
  BatchLoader::Request BatchesOf(const RoundShare& share) const;
  /// What this step trains on.
  BatchLoader::Request Batches() const {
    return timed_ != nullptr ? BatchesOf(timed_->share()) : BatchesOf(counters_.step);
  }
  /// Starts to load what the next one trains on.
  void PrefetchNext();
  /// For work on parameters and the optimizer's state.
  Context StateContext() const {
    return StateContextOf(*parts_.context, parts_.model->parameters());
  }

  // Evaluation.

  /// The averages that stand for the parameters, of the optimizer or a technique; or none.
  Result<std::vector<AveragedParameter>> EvaluatedAverages();
  /// `sequences` of what is `parts.validation`, with averages where the job has them; 0: all.
  Result<EvaluationReport> EvaluateOn(const TrainerParts& parts, int64_t sequences);
  Status ExchangeWeights(const std::vector<AveragedParameter>& averages);

  JobSpec job_;
  Plan plan_;
  TrainerParts parts_;
  TrainingRanks ranks_;
  TechniqueList techniques_;
  Updaters updaters_;
  DeviceWeights weights_;
  std::unique_ptr<LocalRounds> rounds_;  ///< With local steps.
  std::unique_ptr<TimedRound> timed_;    ///< With rounds by time.
  double waited_for_techniques_ = 0;     ///< Seconds for ranks, in this step.
  /// StepBatches::part_targets of the step, over all ranks.
  std::vector<int64_t> part_targets_;
  StepTotals totals_;
  ReadbackOf<StepNumbers> numbers_;  ///< On a device.
  StepClock clock_;
  SequencePasses sequences_;
  PartLosses part_losses_;
  std::unique_ptr<MicroBatchSums> micro_batches_;  ///< With train.deterministic mesh.
  StepPasses passes_;
  std::unique_ptr<ReplayCheck> replay_;  ///< With train.replay_every_steps.
  std::optional<WrongBits> wrong_bits_;
  StepLauncher launcher_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<OffloadedUpdates> offloaded_;  ///< Or none; ends before the parameters do.
  StepMemory memory_;
  TrainCounters counters_;
};

}  // namespace weft::engine
