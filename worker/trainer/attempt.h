#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/local_steps.h"
#include "common/spec/model_family.h"
#include "common/spec/saving_ranks.h"
#include "common/spec/shard_ranks.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/writer.h"
#include "worker/engine/models/language_model.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/expert_parallel.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/techniques/layer_sampling/elastic_network.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/techniques/parallel/mesh_groups.h"
#include "worker/engine/techniques/parallel/pipeline_parallel.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/train/trainer.h"
#include "worker/trainer/activity_reporter.h"
#include "worker/trainer/collective_accounts.h"
#include "worker/trainer/loss_curve.h"
#include "worker/trainer/peer_snapshots.h"
#include "worker/trainer/profile.h"
#include "worker/trainer/round_peers.h"
#include "worker/trainer/run_attempt.h"
#include "worker/trainer/save_schedule.h"
#include "worker/trainer/speedometer.h"
#include "worker/trainer/start_state.h"

namespace weft::trainer {

/// One rank's share of an attempt, in the order Prepare, Train. Not thread-safe.
class Attempt {
 public:
  /// `search`: as RunAttempt.
  Attempt(Env& env, const AttemptSpec& spec, TrainingData data, Reporter& reporter,
          engine::Store& store, const PhaseSearchSpec& search);
  /// Leaves the peers; without waiting for them unless Train has ended well.
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Joins the peers, builds the model and restores the newest state. False: it was asked to stop
  /// before it had joined a running attempt.
  Result<bool> Prepare();

  /// Steps until the job is done, a stop is asked for, or something fails.
  Result<AttemptOutcome> Train();

  /// Whether what this rank saves can be written, see CheckRunFolder; OK where it saves nothing.
  Status CheckFolder();

  /// Writes into the log, after memory ran out, what the plan expected and what was held.
  void LogMemory();

 private:
  /// What one rank sends to all after a step.
  struct Votes {
    bool stop = false;
    bool fenced = false;
    int64_t profile_steps = 0;
    bool save = false;
    int64_t membership = 0;  ///< Newest that rank 0 knows of; 0 where ranks stay.
  };

  bool first_rank() const { return spec_.rank == 0; }
  /// Whether a checkpoint is due after `step`, with `last` the outer step before: by the job, or by
  /// what rank 0 has voted.
  bool SaveIsDue(int64_t last, int64_t step, const Votes& votes) const;
  bool makes_local_steps() const { return MakesLocalSteps(spec_.job.train); }
  engine::ReductionAxes reduction_axes() const {
    return engine::ReductionAxesOf(makes_local_steps());
  }
  /// Ranks with the same experts that each save something: their shards of the updates, or the
  /// state of local steps.
  int64_t saving_replicas() const { return SavingReplicas(spec_.job.train, spec_.plan); }
  /// This many ranks hold a part of the state each, which they save; the others hold the same parts
  /// as they.
  int64_t saving_ranks() const { return SavingRanks(spec_.job.train, spec_.plan); }
  /// The number of this rank among them, the first stage first; that of no rank for others.
  int64_t saving_rank() const;
  Result<AttemptOutcome> TrainToTheEnd();
  /// The next step, and what follows an outer step. The outcome, once there is one.
  Result<std::optional<AttemptOutcome>> Advance();
  /// What follows an outer step.
  Result<std::optional<AttemptOutcome>> AfterOuterStep();
  /// Saves because a rank was asked to stop.
  AttemptOutcome SaveAndStop();

  // attempt_peers.cc: ranks that come and go.
  /// Starts a rank of a running attempt, up to where it has the state of the others. False: it has
  /// been asked to stop before.
  Result<bool> PrepareToJoin();
  /// Whether the error comes of ranks that are lost, without which the others can go on.
  bool MayRegroup(const Status& status);
  /// Comes together with the ranks of a membership of at least that number, and again with those of
  /// the next one as long as some are lost meanwhile. False: without this rank.
  Result<bool> Regroup(int64_t least);
  Result<bool> TryToRegroup(int64_t least);
  /// Leaves what the ranks of the membership before did together.
  void LeavePeers();
  Status ConnectPeers();
  /// Takes the state of a rank that has it, if this one is behind.
  Status CatchUp(const std::vector<engine::RoundPosition>& positions);
  /// What is of rank 0, when this rank has become it.
  Status TakeFirstRank();
  /// At the end of the training: the first rank says that all is saved, and the others wait for it.
  /// One that is lost before leaves it to them.
  Status EndTogether();
  bool classifies() const { return HeadOf(spec_.job.model) == "classification"; }
  /// Where gradients go when they are complete; none where they stay.
  engine::GradientReducer* GradientsLeave() const;
  Status OpenDevice();
  engine::CollectiveOptions GroupOptions() const;
  Status Join();
  /// The groups that are made of the one of all ranks.
  Status MakeGroups();
  /// Of ranks that save.
  Status OpenCheckpoints();
  Status AgreeOnData();
  /// Makes a checkpoint of the newest snapshot, if that is what is newest.
  Status RestoreSnapshot();
  /// Loads the network whose logits the training adds to its own, if there is one.
  Status LoadAddedNetwork();
  /// It is the same on all ranks, and that of the checkpoint to go on from.
  Status CheckAddedNetwork(const StartPoint& start);
  Status BuildModel();
  /// Builds the model, and gives it the state to start from.
  Result<StartPoint> BuildAndRestore();
  /// attempt_growth.cc: learns the operator by which the phase grows, with the whole model on each
  /// rank; none where the phase has none, or has checkpoints.
  Result<std::optional<LearnedStart>> LearnGrowth();
  Result<LearnedStart> LearnOnWholeModel();
  /// Counts those of the whole network; ranks with other stages or experts have parts of it.
  Status CountParameters();
  Status OpenOutputs(const StartPoint& start);
  Status Step();
  /// Reports the step to the worker, the loss curve, the log.
  Status ReportStep(const engine::StepReport& report);
  /// Counts dropped updates in a row, and warns of them.
  void CountSkipped(const engine::StepReport& report);
  /// What follows from the last step's verdict; true: the training went back.
  Result<bool> Guard();
  /// The error of a step that has found wrong bits (train.replay_every_steps).
  Status ReportWrongBits(const engine::WrongBits& found);
  /// All ranks return to the newest checkpoint, or the beginning, and leave out the data since
  /// then.
  Status RollBack();
  Result<Votes> CollectVotes();
  /// Whether `own` is true on one of the ranks that save.
  Result<bool> OnAnyRank(bool own);
  /// Ends the recording under way, if any, on all ranks.
  Status FinishProfile();
  Status EvaluateNow();
  /// Reports, after weights were grown and before the first step, what this did to the loss.
  Status EvaluateGrown();
  /// The error of a diverged training when a weight is not finite, or the last updates, more than
  /// `dropped_allowed` of them, were dropped. Such a state is not saved: it would replace the good
  /// checkpoints, and every later attempt would start from it.
  Status CheckState(int64_t dropped_allowed);
  Status SaveInBackground();
  /// Keeps the state in the memory of two machines.
  Status TakeSnapshot();
  Status SaveAndWait();
  engine::CheckpointManifest Manifest() const;
  /// What this rank saves: of what several ranks have alike one does, and of the frozen network
  /// that is in a folder none.
  std::vector<engine::NamedTensor> StateToSave();
  /// Whether all steps are done that this attempt is to do.
  bool Done() const {
    return trainer_->finished() || (elastic_ && trainer_->counters().step >= search_.steps);
  }
  Result<AttemptOutcome> Finish();
  /// Evaluates the sizes of the elastic network, in the order of PhaseSizes.
  Result<std::vector<SizeCandidate>> CompareSizes();
  /// FLOPs of the steps of the search, each with the size that it had.
  double FlopsOfSearch(const std::vector<SizeCandidate>& candidates) const;
  /// Evaluates these sizes and chooses one, the same on all ranks.
  Result<AttemptOutcome> FinishSearch();
  RunSummary Summarize() const;
  /// Duration of all attempts up to now; on other ranks than the first of this one.
  double RunSeconds() const;
  /// Leaves RunSeconds for attempts that follow. A failure is a warning.
  void NoteSeconds();
  void ReportCheckpoint(const engine::CheckpointProgress& progress);
  void Event(const std::string& level, const std::string& text);
  /// Damaged checkpoints that were passed over.
  void ReportDamaged(const StartPoint& start);
  void ReportActivity(const std::string& activity) { activity_.Report({activity}); }
  /// Saving, and how much this rank writes.
  void ReportSaving();
  /// Evaluating, and the number of sequences of all ranks together.
  void ReportEvaluating(int64_t sequences);

  Env& env_;
  AttemptSpec spec_;
  TrainingData data_;
  Reporter& reporter_;
  ActivityReporter activity_;
  engine::Store& store_;
  const PhaseSearchSpec search_;
  std::optional<engine::ElasticNetwork> elastic_;  ///< None without a search.
  const std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<RoundPeers> peers_;  ///< None where ranks stay. Its store outlives what follows.

  std::unique_ptr<engine::ComputeDevice> device_;
  std::unique_ptr<engine::Collective> group_;
  engine::MeshGroups groups_;
  std::optional<engine::TensorParallel> tensor_;      ///< None where this rank has whole matrices.
  std::optional<engine::ContextParallel> sequences_;  ///< None where it has whole sequences.
  std::optional<engine::ExpertParallel> experts_;     ///< None where it has all experts.
  std::unique_ptr<engine::PipelineParallel> pipeline_;  ///< None where it has all blocks.
  CollectiveAccounts accounts_;                         ///< Of all groups of this rank.
  std::vector<CollectiveUse> reported_collectives_;     ///< What was in them at the last progress.
  engine::Context context_;
  std::unique_ptr<engine::LanguageModel> added_network_;  ///< See LoadAddedNetwork.
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::BucketReducer> reducer_;  ///< None for one rank.
  std::unique_ptr<engine::BucketReducer> outer_;    ///< Of outer steps; none for one worker.
  engine::PlannedOffload offload_;
  std::unique_ptr<engine::Trainer> trainer_;
  std::unique_ptr<engine::CheckpointWriter> checkpoints_;  ///< Of ranks that save: 0, or all.
  std::unique_ptr<PeerSnapshots> snapshots_;               ///< None where none are asked for.
  std::optional<LossCurve> curve_;                         ///< Rank 0.
  std::optional<Speedometer> speed_;
  std::optional<SaveSchedule> saves_;        ///< Rank 0, where the job leaves the interval open.
  std::optional<ProfileRecording> profile_;  ///< On all ranks at the same steps.

  bool ended_ = false;                  ///< Well.
  bool has_state_ = true;               ///< False: it is yet to take that of the others.
  bool outer_step_made_ = false;        ///< And what follows it is not done.
  bool rolling_back_ = false;           ///< The state is nothing that others could go on from.
  int64_t last_outer_step_ = 0;         ///< The one before the newest.
  std::optional<int64_t> resume_step_;  ///< Of the checkpoint that the attempt started from.
  int64_t parameters_ = 0;
  int64_t trained_parameters_ = 0;  ///< Of them.
  int64_t first_step_ = 0;
  int64_t first_tokens_ = 0;
  std::string base_fingerprint_;  ///< As in CheckpointManifest, as the next.
  std::vector<std::string> base_tensors_;
  std::string added_fingerprint_;  ///< FingerprintOfWeights of the added network; or "".
  int64_t saved_step_ = -1;        ///< Newest step given to the checkpoint writer.
  bool snapshot_failed_ = false;   ///< The newest one, which was reported.
  int64_t skipped_in_a_row_ = 0;
  int64_t reported_step_ = 0;        ///< The newest that was reported.
  bool rolled_back_ = false;         ///< Since the last progress message.
  int64_t damaged_checkpoints_ = 0;  ///< Likewise: passed over, since they did not verify.
  double checkpoint_stall_ = 0;  ///< Since the last progress message, as is evaluation_seconds_.
  double evaluation_seconds_ = 0;
  double vote_seconds_ = 0;  ///< Likewise, waiting for the votes of all.
  double training_seconds_ = 0;
  double seconds_before_ = 0;  ///< Of attempts before this one; rank 0.
  bool grown_ = false;         ///< As StartPoint has it; likewise below.
  std::optional<double> loss_before_;
  double fit_flops_ = 0;
  std::optional<SizeChoice> chosen_;  ///< What a search has made of this phase before.
  std::optional<double> start_validation_loss_;
  std::optional<double> validation_loss_;
  std::optional<double> validation_accuracy_;
  MemoryBreakdown peak_memory_;
};

}  // namespace weft::trainer
