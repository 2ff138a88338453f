#include "coordinator/recovery/job_logic.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/clock.h"
#include "common/spec/phases.h"
#include "coordinator/recovery/ledger.h"

namespace weft::coordinator {
namespace {

/// One change being put together.
class Change {
 public:
  Change(const JobCase& current, double now)
      : job_(current.job),
        attempt_(current.attempt),
        previous_reason_(current.previous_reason),
        failures_(current.failures),
        retry_(current.retry),
        phase_(current.phase),
        now_(now) {}

  JobRecord& job() { return job_; }
  size_t phase() const { return phase_; }
  std::optional<AttemptRecord>& attempt() { return attempt_; }
  void SaveAttempt() { attempt_changed_ = true; }
  void SaveJob() { job_changed_ = true; }
  void Event(const std::string& kind, const std::string& text, int64_t epoch) {
    transaction_.events.push_back({job_.id, epoch, now_, kind, text});
  }
  void AddIntent(const std::string& worker, int64_t epoch, IntentKind kind, bool graceful = false) {
    transaction_.add_intents.push_back({worker, job_.id, epoch, kind, graceful});
  }
  void RemoveIntent(const std::string& worker, int64_t epoch, IntentKind kind) {
    transaction_.remove_intents.push_back({worker, job_.id, epoch, kind, false});
  }

  /// Takes the job through one row of the table.
  JobOutcome Fire(JobEvent event) {
    const JobTransition& row = FindTransition(job_.state, event, MayRetry());
    if (row.outcome == JobOutcome::kMove) {
      Event("transition",
            std::string(Name(row.from)) + " -> " + std::string(Name(row.to)) + " (" +
                std::string(Name(event)) + ")",
            job_.last_epoch);
      job_.state = row.to;
      job_changed_ = true;
      if (IsTerminal(row.to)) job_.ended_at = now_;
      if (row.to == JobState::kQueued) {
        job_.queued_at = now_;
        job_.ended_at.reset();
      }
    }
    return row.outcome;
  }

  /// Asks every worker with living ranks of the attempt to end them.
  void StopRanks(bool graceful) {
    for (const PlacementRecord& placement : attempt_->placements) {
      if (IsGone(placement.state)) continue;
      RemoveIntent(placement.worker_id, attempt_->epoch, IntentKind::kStart);
      AddIntent(placement.worker_id, attempt_->epoch, IntentKind::kStop, graceful);
    }
  }

  void EndAttempt(Reason reason) {
    if (reason != Reason::kNone) attempt_->reason = reason;
    attempt_->ended_at = now_;
    attempt_changed_ = true;
  }

  bool MayRetry() const {
    if (!attempt_ || IsFatal(attempt_->reason)) return false;
    // Out of memory may pass once (another job was beside it), not twice.
    if (attempt_->reason == Reason::kOutOfMemory && previous_reason_ == Reason::kOutOfMemory) {
      return false;
    }
    return job_.last_epoch - job_.budget_from < job_.spec.retry.max_attempts;
  }

  /// The attempt has ended as failed and the job is queued again: from when on.
  std::optional<double> RetryAt() const {
    return coordinator::RetryAt({job_, attempt_, previous_reason_, failures_, retry_, phase_});
  }

  Transaction Finish() {
    if (job_changed_) transaction_.job = std::move(job_);
    if (attempt_changed_) transaction_.attempt = std::move(attempt_);
    return std::move(transaction_);
  }

 private:
  JobRecord job_;
  std::optional<AttemptRecord> attempt_;
  std::optional<Reason> previous_reason_;
  int64_t failures_;
  RetryRules retry_;
  size_t phase_;
  double now_;
  Transaction transaction_;
  bool job_changed_ = false;
  bool attempt_changed_ = false;
};

PlacementRecord* FindPlacement(AttemptRecord& attempt, const std::string& worker_id) {
  for (PlacementRecord& placement : attempt.placements) {
    if (placement.worker_id == worker_id) return &placement;
  }
  return nullptr;
}

/// A cause replaces the one known so far when it says more: the first rank to die of a broken
/// connection often reports before the one that made it break.
int Weight(Reason reason) {
  switch (reason) {
    case Reason::kUserError:
    case Reason::kNumerics:
      return 4;
    case Reason::kOutOfMemory:
      return 3;
    case Reason::kWorkerLost:
    // What breaks while the ranks of a draining worker end is part of that.
    case Reason::kDrained:
      return 2;
    case Reason::kNone:
    case Reason::kReplanned:
      return 0;
    default:
      return 1;
  }
}

void Interrupt(Change& change, Reason reason, const std::string& message, double now) {
  AttemptRecord& attempt = *change.attempt();
  const bool saves = SavesAndStops(attempt);
  const bool worse = Weight(reason) > Weight(attempt.reason);
  if (worse) {
    attempt.reason = reason;
    attempt.message = message;
    change.SaveAttempt();
  }
  JobState before = change.job().state;
  if (before != JobState::kCancelling && !attempt.times.failed_at) {
    attempt.times.failed_at = now;
    change.SaveAttempt();
  }
  const bool moved = change.Fire(JobEvent::kInterrupted) == JobOutcome::kMove;
  // What was to be saved cannot be any more.
  if (moved || (saves && worse)) change.StopRanks(false);
  if (before == JobState::kCancelling) return;
  if (worse) change.SaveJob();
  change.job().reason = attempt.reason;
  change.job().message = attempt.message;
}

/// False, and nothing changes, unless the job is STARTING or RUNNING.
bool Drain(Change& change, const std::string& why, bool graceful) {
  if (change.Fire(JobEvent::kDrain) != JobOutcome::kMove) return false;
  AttemptRecord& attempt = *change.attempt();
  change.Event("drain", why, attempt.epoch);
  for (Reason* reason : {&attempt.reason, &change.job().reason}) *reason = Reason::kDrained;
  for (std::string* message : {&attempt.message, &change.job().message}) *message = why;
  change.SaveAttempt();
  change.StopRanks(graceful);
  return true;
}

bool Completed(const AttemptRecord& attempt) {
  return attempt.reason == Reason::kCompleted;
}

/// "attempt 3 of 10 starts in 3.2 s, at 2026-01-31T12:00:00.000Z"
std::string NextTry(const JobRecord& job, double now, double at) {
  const auto tenths = std::llround((at - now) * 10);
  return "attempt " + std::to_string(job.last_epoch - job.budget_from + 1) + " of " +
         std::to_string(job.spec.retry.max_attempts) + " starts in " + std::to_string(tenths / 10) +
         "." + std::to_string(tenths % 10) + " s, at " + FormatTime(at);
}

/// Every rank of the attempt is gone: the job ends, or is queued again.
void CloseAttempt(Change& change, double now) {
  AttemptRecord& attempt = *change.attempt();
  JobRecord& job = change.job();
  bool finished = std::all_of(
      attempt.placements.begin(), attempt.placements.end(),
      [](const auto& placement) { return placement.state == PlacementState::kFinished; });
  const bool last = change.phase() + 1 == PhaseCount(job.spec);
  const JobEvent end = last ? JobEvent::kFinished : JobEvent::kPhaseFinished;
  if (finished && change.Fire(end) == JobOutcome::kMove) {
    change.EndAttempt(Reason::kCompleted);
    attempt.message.clear();
    job.reason = last ? Reason::kCompleted : Reason::kNone;
    job.message = last ? "" : PhaseTitle(job.spec, change.phase()) + " is complete";
    if (job.state == JobState::kCancelled) {
      job.reason = Reason::kCancelledByUser;
      job.message = "cancelled by the user; " + job.message;
    }
    job.budget_from = job.last_epoch;  // each phase may be tried as often
    return;
  }
  bool cancelled = job.state == JobState::kCancelling;
  if (SavesAndStops(attempt)) ++job.budget_from;
  if (change.Fire(JobEvent::kGone) != JobOutcome::kMove) return;
  change.EndAttempt(cancelled ? Reason::kCancelledByUser : Reason::kNone);
  if (cancelled) {
    job.reason = Reason::kCancelledByUser;
    job.message = "cancelled by the user";
  } else if (job.state == JobState::kFailed && !IsFatal(attempt.reason)) {
    int64_t used = job.last_epoch - job.budget_from;
    job.reason = Reason::kRetriesExhausted;
    job.message = "gave up after " + std::to_string(used) +
                  " attempts; the last one: " + std::string(Name(attempt.reason)) + ": " +
                  attempt.message;
  } else if (const std::optional<double> at = change.RetryAt()) {
    const std::string next = NextTry(job, now, *at);
    job.message += "; " + next;
    change.Event("retry", next, attempt.epoch);
  }
}

}  // namespace

size_t PhaseAfter(const JobSpec& job, std::span<const AttemptRecord> attempts) {
  const auto completed = std::count_if(attempts.begin(), attempts.end(), Completed);
  return std::min(static_cast<size_t>(completed), PhaseCount(job) - 1);
}

std::span<const AttemptRecord> AttemptsAtPhase(std::span<const AttemptRecord> attempts) {
  const auto last = std::find_if(attempts.rbegin(), attempts.rend(), Completed);
  return attempts.last(static_cast<size_t>(last - attempts.rbegin()));
}

const AttemptRecord* LastOfPhase(const JobCase& current) {
  return current.attempt && !Completed(*current.attempt) ? &*current.attempt : nullptr;
}

bool IsFatal(Reason reason) {
  return reason == Reason::kUserError || reason == Reason::kNumerics;
}

Result<Transaction> DispatchAttempt(const JobCase& current, const Plan& plan, double now) {
  Change change(current, now);
  if (change.Fire(JobEvent::kDispatch) != JobOutcome::kMove) {
    return ConflictError("job " + current.job.id + " is " + std::string(Name(current.job.state)) +
                         " and cannot be dispatched");
  }
  JobRecord& job = change.job();
  ++job.last_epoch;
  if (!job.started_at) job.started_at = now;
  job.reason = Reason::kNone;
  job.message.clear();
  AttemptRecord attempt;
  attempt.job_id = job.id;
  attempt.epoch = job.last_epoch;
  attempt.started_at = now;
  attempt.plan = plan;
  attempt.times = TimesOfNext(current.attempt ? &*current.attempt : nullptr, job.progress);
  std::map<std::string, std::vector<int64_t>> ranks;
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    ranks[plan.rank_workers[rank]].push_back(static_cast<int64_t>(rank));
  }
  for (auto& [worker, list] : ranks) {
    attempt.placements.push_back({worker, std::move(list), PlacementState::kDispatched});
    change.AddIntent(worker, attempt.epoch, IntentKind::kStart);
  }
  change.attempt() = std::move(attempt);
  change.SaveAttempt();
  return change.Finish();
}

Result<Transaction> ApplyReport(const JobCase& current, const PlacementReport& report, double now) {
  Change change(current, now);
  std::string text = report.worker_id + ": " + std::string(Name(report.event)) +
                     (report.message.empty() ? "" : ": " + report.message);
  PlacementRecord* placement = nullptr;
  if (change.attempt() && change.attempt()->epoch == report.epoch) {
    placement = FindPlacement(*change.attempt(), report.worker_id);
  }
  if (placement == nullptr || change.attempt()->ended_at) {
    change.Event("late report", text, report.epoch);
    return change.Finish();
  }
  const bool started = placement->state != PlacementState::kDispatched;
  PlacementState next = NextPlacementState(placement->state, report.event);
  if (next == placement->state) return change.Finish();  // repeated or overtaken
  placement->state = next;
  change.SaveAttempt();
  change.Event("report", text, report.epoch);
  change.RemoveIntent(report.worker_id, report.epoch, IntentKind::kStart);

  AttemptRecord& attempt = *change.attempt();
  JobRecord& job = change.job();
  switch (report.event) {
    case PlacementEvent::kStarted:
      break;
    case PlacementEvent::kTraining:
      if (!attempt.times.training_at) attempt.times.training_at = now;
      change.Fire(JobEvent::kTraining);
      break;
    case PlacementEvent::kFinished:
      if (!report.summary_json.empty()) {
        job.summary_json = report.summary_json;
        change.SaveJob();  // the job itself moves only when the last worker has finished
      }
      break;
    case PlacementEvent::kFailed:
      Interrupt(change, report.reason == Reason::kNone ? Reason::kRankDied : report.reason, text,
                now);
      break;
    case PlacementEvent::kStopped:
      // Unasked, because the worker drains: all ranks agreed to stop, and some may still be saving.
      // Only where its ranks never started have the others nothing to save, and wait in vain.
      if (!Drain(change, "worker " + report.worker_id + " drains: its ranks stopped", started) &&
          !started && job.state == JobState::kRecovering) {
        change.StopRanks(false);
      }
      break;
    case PlacementEvent::kLost:
      Interrupt(change, report.reason == Reason::kNone ? Reason::kWorkerLost : report.reason, text,
                now);
      break;
  }
  if (IsGone(next)) {
    change.RemoveIntent(report.worker_id, report.epoch, IntentKind::kStop);
    bool all_gone = std::all_of(attempt.placements.begin(), attempt.placements.end(),
                                [](const auto& s) { return IsGone(s.state); });
    if (all_gone) CloseAttempt(change, now);
  }
  return change.Finish();
}

Result<Transaction> InterruptAttempt(const JobCase& current, int64_t epoch, Reason reason,
                                     const std::string& message, double now) {
  Change change(current, now);
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at) {
    return Transaction{};
  }
  Interrupt(change, reason, message, now);
  if (change.job().state != current.job.state) {
    change.Event(reason == Reason::kHung ? "hung" : "interrupted", message, epoch);
  }
  return change.Finish();
}

Result<Transaction> ReplanAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                  double now) {
  Change change(current, now);
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at ||
      change.Fire(JobEvent::kReplan) != JobOutcome::kMove) {
    return Transaction{};
  }
  change.Event("replan", why, epoch);
  for (Reason* reason : {&change.attempt()->reason, &change.job().reason}) {
    *reason = Reason::kReplanned;
  }
  for (std::string* message : {&change.attempt()->message, &change.job().message}) *message = why;
  change.SaveAttempt();
  change.StopRanks(/*graceful=*/true);
  return change.Finish();
}

Result<Transaction> DrainAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                 double now) {
  Change change(current, now);
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at ||
      !Drain(change, why, /*graceful=*/true)) {
    return Transaction{};
  }
  return change.Finish();
}

Result<Transaction> KillAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                double now) {
  Change change(current, now);
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at) {
    return Transaction{};
  }
  change.Event("kill", why, epoch);
  change.job().message += "; " + why;
  change.SaveJob();
  change.StopRanks(/*graceful=*/false);
  return change.Finish();
}

bool SavesAndStops(const AttemptRecord& attempt) {
  return attempt.reason == Reason::kReplanned || attempt.reason == Reason::kDrained;
}

std::optional<double> RetryAt(const JobCase& current) {
  const JobRecord& job = current.job;
  const std::optional<AttemptRecord>& last = current.attempt;
  // A user's retry makes a new start.
  const int64_t counted = job.last_epoch - job.budget_from;
  if (job.state != JobState::kQueued || counted == 0 || !last || !last->ended_at ||
      !HasFailed(*last)) {
    return std::nullopt;
  }
  const int64_t failures = FailuresInARow(current.failures, *last, job.progress.checkpoint_step);
  return *last->ended_at +
         RetryDelaySeconds(current.retry, std::min(failures, counted), job.id, last->epoch);
}

Result<Transaction> CancelJob(const JobCase& current, double now) {
  Change change(current, now);
  JobState before = current.job.state;
  if (change.Fire(JobEvent::kCancel) != JobOutcome::kMove) {
    if (before != JobState::kCancelling) return Transaction{};
    change.Event("kill", "a second cancel: ranks are killed", current.job.last_epoch);
    change.StopRanks(false);
    return change.Finish();
  }
  JobRecord& job = change.job();
  job.reason = Reason::kCancelledByUser;
  job.message = before == JobState::kQueued ? "cancelled by the user before it started"
                                            : "cancel asked for; ranks are stopping";
  const bool saves = change.attempt() && SavesAndStops(*change.attempt());
  if (before != JobState::kQueued) change.StopRanks(before == JobState::kRunning || saves);
  return change.Finish();
}

Result<Transaction> RetryJob(const JobCase& current, double now) {
  Change change(current, now);
  if (change.Fire(JobEvent::kRetry) != JobOutcome::kMove) {
    return ConflictError("job " + current.job.id + " is " + std::string(Name(current.job.state)) +
                         "; only FAILED and CANCELLED jobs can be retried");
  }
  JobRecord& job = change.job();
  job.budget_from = job.last_epoch;
  job.reason = Reason::kNone;
  job.message.clear();
  return change.Finish();
}

}  // namespace weft::coordinator
