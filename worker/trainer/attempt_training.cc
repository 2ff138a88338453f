// The steps of an attempt: what follows each, until the training ends.
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/local_steps.h"
#include "common/spec/spec_json.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/train/guard.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/run_folder.h"

namespace weft::trainer {

namespace {

const std::optional<AttemptOutcome> kGoesOn;

}  // namespace

using std::chrono::steady_clock;

Result<AttemptOutcome> Attempt::Train() {
  Result<AttemptOutcome> outcome = TrainToTheEnd();
  ended_ = outcome.ok();
  if (outcome.status().code() != StatusCode::kUnavailable || pipeline_ == nullptr) return outcome;
  // A stage sees its neighbours alone; the group of all ranks knows whom it has lost.
  for (int wait = 0; wait < 50 && group_->Health().ok(); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (const Status lost = group_->Health(); !lost.ok()) {
    return UnavailableError(lost.message() + ": " + outcome.status().message());
  }
  return outcome;
}

Result<AttemptOutcome> Attempt::TrainToTheEnd() {
  speed_.emplace(steady_clock::now());
  if (grown_) WEFT_RETURN_IF_ERROR(EvaluateGrown());
  for (;;) {
    Result<std::optional<AttemptOutcome>> end = Advance();
    if (!end.ok()) {
      if (!MayRegroup(end.status())) return end.status();
      Event("warning", "goes on without ranks that are lost: " + end.status().message());
      WEFT_ASSIGN_OR_RETURN(const bool stays, Regroup(peers_->members().membership + 1));
      if (!stays) return AttemptOutcome{trainer_->counters().step, "", std::nullopt};
    } else if (*end) {
      return **std::move(end);
    }
  }
}

Result<std::optional<AttemptOutcome>> Attempt::Advance() {
  if (!outer_step_made_) {
    if (Done()) {
      WEFT_ASSIGN_OR_RETURN(AttemptOutcome outcome, elastic_ ? FinishSearch() : Finish());
      return std::optional(std::move(outcome));
    }
    WEFT_RETURN_IF_ERROR(Failpoint("trainer.before_step"));
    if (trainer_->AtOuterStep()) last_outer_step_ = trainer_->counters().step;
    WEFT_RETURN_IF_ERROR(Step());
    if (!trainer_->AtOuterStep()) {
      // Nothing is asked of the others here, but one that is gone is noticed.
      WEFT_RETURN_IF_ERROR(group_->Health());
      return kGoesOn;
    }
    outer_step_made_ = true;
  }
  return AfterOuterStep();
}

Result<std::optional<AttemptOutcome>> Attempt::AfterOuterStep() {
  const JobSpec& job = spec_.job;
  const int64_t step = trainer_->counters().step;
  WEFT_ASSIGN_OR_RETURN(Votes votes, CollectVotes());
  if (votes.fenced) {
    return ConflictError("attempt " + std::to_string(spec_.epoch) + " of job " + spec_.job_id +
                         " was replaced by a newer one");
  }
  if (profile_ && (profile_->done() || votes.stop)) WEFT_RETURN_IF_ERROR(FinishProfile());
  bool went_back = false;
  if (!votes.stop) {
    WEFT_ASSIGN_OR_RETURN(went_back, Guard());
  }
  if (went_back || Done()) {
    outer_step_made_ = false;
    return kGoesOn;
  }
  if (votes.stop) return std::optional(SaveAndStop());
  if (votes.profile_steps > 0) {
    profile_.emplace(context_, accounts_, step + 1, votes.profile_steps);
  }
  if (IsDue(job.train.eval_every_steps, last_outer_step_, step)) {
    WEFT_RETURN_IF_ERROR(EvaluateNow());
  }
  if (snapshots_ && IsDue(job.checkpoint.peer_every_steps, last_outer_step_, step)) {
    ReportSaving();
    WEFT_RETURN_IF_ERROR(TakeSnapshot());
    ReportActivity("training");
  }
  if (SaveIsDue(last_outer_step_, step, votes)) {
    ReportSaving();
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(SaveInBackground());
    if (saves_) {
      const bool saved = saved_step_ == step;
      saves_->OnSave(step, saved ? std::optional(watch.Lap()) : std::nullopt);
      if (const std::string news = saves_->News(); !news.empty()) Event("info", news);
    }
    ReportActivity("training");
  }
  outer_step_made_ = false;
  if (peers_ == nullptr || votes.membership <= peers_->members().membership) return kGoesOn;
  // A save that is under way is of ranks that are all there still.
  if (checkpoints_) (void)checkpoints_->Wait();
  WEFT_ASSIGN_OR_RETURN(const bool stays, Regroup(votes.membership));
  if (stays) return kGoesOn;
  return std::optional(AttemptOutcome{step, "", std::nullopt});
}

AttemptOutcome Attempt::SaveAndStop() {
  const int64_t step = trainer_->counters().step;
  ReportSaving();
  Status saved = CheckState(0);
  if (saved.ok()) saved = SaveAndWait();
  NoteSeconds();
  if (saved.ok()) {
    return AttemptOutcome{step, engine::CheckpointPath(spec_.run_dir, step), std::nullopt};
  }
  Event("error",
        "stopped without a checkpoint of step " + std::to_string(step) + ": " + saved.message());
  return AttemptOutcome{step, "", std::nullopt};
}

bool Attempt::SaveIsDue(int64_t last, int64_t step, const Votes& votes) const {
  if (spec_.job.checkpoint.interval == "auto") return votes.save;
  return IsDue(spec_.job.checkpoint.every_steps, last, step);
}

Status Attempt::Step() {
  engine::Stopwatch watch;
  const Result<engine::StepReport> made = trainer_->Step();
  if (!made.ok()) {
    return trainer_->wrong_bits() ? ReportWrongBits(*trainer_->wrong_bits()) : made.status();
  }
  const engine::StepReport& report = *made;
  if (profile_) profile_->OnStep(watch.Lap(), report.tiers);
  if (!TimesRounds(spec_.job.train) || trainer_->AtOuterStep()) {
    WEFT_RETURN_IF_ERROR(ReportStep(report));
  } else {
    ReportActivity("training");  // A sign of life: of a round by time is reported at its end.
  }
  CountSkipped(report);
  return OkStatus();
}

// All ranks have found the same and come here. Those that computed wrong say so themselves, for the
// daemon to name them and their machine.
Status Attempt::ReportWrongBits(const engine::WrongBits& found) {
  char own[HOST_NAME_MAX + 1] = {};
  (void)gethostname(own, HOST_NAME_MAX);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, group_->AllGather(own));
  std::string ranks;
  for (const int64_t rank : found.suspects) {
    ranks += (ranks.empty() ? "rank " : " or rank ") + std::to_string(rank) + " on " +
             hosts[static_cast<size_t>(rank)];
  }
  const std::string text = "a micro-batch of step " + std::to_string(found.step) +
                           " was computed twice with different bits; " + ranks + " computed wrong";
  const bool suspected =
      std::find(found.suspects.begin(), found.suspects.end(), spec_.rank) != found.suspects.end();
  if (suspected) return SilentCorruptionError(text);
  // The first failure that the coordinator hears of has the other ranks killed.
  constexpr std::chrono::milliseconds kSuspectsFirst{500};
  std::this_thread::sleep_for(kSuspectsFirst);
  return AbortedError(text);
}

Result<bool> Attempt::Guard() {
  const engine::TrainCounters& counters = trainer_->counters();
  switch (engine::AfterSkips(spec_.job.train.guard, skipped_in_a_row_, counters.rollbacks)) {
    case engine::GuardAction::kGoOn:
      return false;
    case engine::GuardAction::kRollBack:
      WEFT_RETURN_IF_ERROR(RollBack());
      return true;
    case engine::GuardAction::kGiveUp:
      break;
  }
  return NumericsError("the updates of " + std::to_string(skipped_in_a_row_) +
                       " steps in a row up to step " + std::to_string(counters.step) +
                       " were dropped, after " + std::to_string(counters.rollbacks) + " of " +
                       std::to_string(spec_.job.train.guard.max_rollbacks) + " rollbacks");
}

Status Attempt::RollBack() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  rolling_back_ = true;
  ReportActivity("loading");
  const engine::TrainCounters bad = trainer_->counters();
  // A checkpoint that is on its way may be the one to go back to; if it fails, the one before is.
  if (checkpoints_) (void)checkpoints_->Wait();
  // Made anew, so that without any checkpoint the training begins as it did the first time.
  trainer_.reset();
  offload_ = {};
  reducer_.reset();
  outer_.reset();
  model_.reset();
  WEFT_ASSIGN_OR_RETURN(StartPoint start, BuildAndRestore());
  start.counters = engine::AfterRollback(bad, start.counters);
  WEFT_RETURN_IF_ERROR(trainer_->Restored(start.counters));
  rolling_back_ = false;
  ReportActivity("training");
  skipped_in_a_row_ = 0;
  reported_step_ = start.counters.step;
  rolled_back_ = true;
  saved_step_ = -1;
  // Those past the checkpoint have seen the data that is left out from now on.
  if (snapshots_) WEFT_RETURN_IF_ERROR(snapshots_->Forget());
  if (!first_rank()) return OpenOutputs(start);
  WEFT_RETURN_IF_ERROR(SaveRollback(env_, spec_.run_dir, start.counters));
  ReportDamaged(start);
  WEFT_RETURN_IF_ERROR(OpenOutputs(start));
  Event("warning", "went back from step " + std::to_string(bad.step) + " to step " +
                       std::to_string(start.counters.step) +
                       " and leaves out the data in between (rollback " +
                       std::to_string(start.counters.rollbacks) + " of " +
                       std::to_string(spec_.job.train.guard.max_rollbacks) + ")");
  return OkStatus();
}

Result<Attempt::Votes> Attempt::CollectVotes() {
  const bool may_profile = first_rank() && !profile_;
  const bool save = saves_ && saves_->Due(trainer_->counters().step);
  const bool tells = first_rank() && peers_ != nullptr;
  std::array<double, 5> votes = {
      reporter_.StopRequested() ? 1.0 : 0.0, checkpoints_ && checkpoints_->fenced() ? 1.0 : 0.0,
      may_profile ? static_cast<double>(reporter_.TakeProfileRequest()) : 0.0, save ? 1.0 : 0.0,
      tells ? static_cast<double>(peers_->newest()) : 0.0};
  engine::Stopwatch watch;
  if (group_->size() > 1) WEFT_RETURN_IF_ERROR(engine::SumScalars(*group_, votes));
  vote_seconds_ += watch.Lap();
  return Votes{votes[0] > 0, votes[1] > 0, static_cast<int64_t>(votes[2]), votes[3] > 0,
               static_cast<int64_t>(votes[4])};
}

Result<bool> Attempt::OnAnyRank(bool own) {
  std::array<double, 1> sum = {own ? 1.0 : 0.0};
  if (saving_replicas() > 1) {
    WEFT_RETURN_IF_ERROR((outer_ != nullptr ? outer_ : reducer_)->SumOverParts(sum));
  }
  if (tensor_) WEFT_RETURN_IF_ERROR(tensor_->SumScalars(sum));
  if (experts_) WEFT_RETURN_IF_ERROR(engine::SumScalars(experts_->group(), sum));
  if (pipeline_ != nullptr) WEFT_RETURN_IF_ERROR(pipeline_->SumScalars(sum));
  return sum[0] > 0;
}

Status Attempt::FinishProfile() {
  if (!profile_) return OkStatus();
  ReportActivity("saving");
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> events, profile_->GatherEvents(*group_));
  if (first_rank()) {
    Result<ProfileReport> report = profile_->Write(env_, spec_.run_dir, events);
    if (report.ok()) {
      Event("info",
            "profile of " + std::to_string(report->steps) + " steps in " + report->trace_path);
      reporter_.Report(ProfiledMessage{"", *report});
    } else {
      reporter_.Report(ProfiledMessage{"writing the trace: " + report.status().message(), {}});
    }
  }
  profile_.reset();
  ReportActivity("training");
  return OkStatus();
}

Result<AttemptOutcome> Attempt::Finish() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  ReportSaving();  // Of all weights each is looked at, wherever they are.
  WEFT_RETURN_IF_ERROR(CheckState(1));
  WEFT_RETURN_IF_ERROR(EvaluateNow());
  ReportSaving();
  WEFT_RETURN_IF_ERROR(SaveAndWait());
  AttemptOutcome outcome{trainer_->counters().step,
                         engine::CheckpointPath(spec_.run_dir, trainer_->counters().step),
                         Summarize()};
  if (snapshots_) WEFT_RETURN_IF_ERROR(snapshots_->Forget());
  NoteSeconds();
  if (first_rank()) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env_, JoinPath(spec_.run_dir, "summary.json"),
                                         ToJson(*outcome.summary).dump(2) + "\n"));
  }
  WEFT_RETURN_IF_ERROR(EndTogether());
  return outcome;
}

}  // namespace weft::trainer
