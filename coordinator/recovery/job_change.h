#pragma once

#include <optional>
#include <string>
#include <utility>

#include "common/heap_optional.h"
#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {

/// Says for people why a job is PAUSED.
inline constexpr const char* kPausedMessage = "paused by a user; hint: weft job resume";

/// How often attempts at a job may fail in one way.
struct FailureLimit {
  const char* field;  ///< That sets it.
  int64_t most;
  int64_t before;  ///< Of attempts before the newest one.
};

/// One change being put together.
class Change {
 public:
  Change(const JobCase& current, double now)
      : job_(current.job),
        attempt_(current.attempt),
        previous_reason_(current.previous_reason),
        failures_(current.failures),
        tally_(current.tally),
        retry_(current.retry),
        phase_(current.phase),
        now_(now) {}

  JobRecord& job() { return job_; }
  size_t phase() const { return phase_; }
  HeapOptional<AttemptRecord>& attempt() { return attempt_; }
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
    if (!attempt_) return false;
    // Failures of machines are none of the first count. The second one ends a job that comes
    // nowhere.
    const int64_t most = job_.spec.retry.max_attempts;
    const bool left = job_.last_epoch - job_.budget_from < most && FailuresInARow() < most;
    if (const std::optional<FailureLimit> limit = LimitOf(attempt_->reason)) {
      return left && limit->before + 1 < limit->most;
    }
    if (IsFatal(attempt_->reason)) return false;
    // Out of memory may pass once (another job was on the machine), not twice.
    const bool again =
        attempt_->reason == Reason::kOutOfMemory && previous_reason_ == Reason::kOutOfMemory;
    return left && !again;
  }

  /// Up to and including the newest attempt.
  int64_t FailuresInARow() const {
    return coordinator::FailuresInARow(failures_, *attempt_, job_.progress.checkpoint_step,
                                       job_.retried_from);
  }

  /// A limit of its own that the job sets failures of this kind; nullopt: none.
  std::optional<FailureLimit> LimitOf(Reason reason) const {
    const RetrySpec& retry = job_.spec.retry;
    std::optional<FailureLimit> limit;
    if (reason == Reason::kOutOfMemory) {
      limit = {"retry.max_memory_failures", retry.max_memory_failures, tally_.memory_failures};
    } else if (reason == Reason::kNumerics) {
      limit = {"retry.max_numerics_failures", retry.max_numerics_failures,
               tally_.numerics_failures};
    } else if (reason == Reason::kHung) {
      limit = {"retry.max_hangs", retry.max_hangs, tally_.hangs};
    } else if (IsMachineFailure(reason)) {
      limit = {"retry.max_machine_failures", retry.max_machine_failures, tally_.machine_failures};
    }
    if (limit && limit->most == 0) limit.reset();
    return limit;
  }

  /// The attempt has ended as failed and the job is queued again: from when on.
  std::optional<double> RetryAt() const {
    return coordinator::RetryAt(
        {job_, attempt_, previous_reason_, failures_, retry_, phase_, tally_});
  }

  /// Has the ranks save and stop, for `reason`. False, and nothing changes, unless the table moves
  /// the job.
  bool SaveAndStop(JobEvent event, const std::string& kind, Reason reason, const std::string& why,
                   bool graceful = true) {
    if (Fire(event) != JobOutcome::kMove) return false;
    Event(kind, why, attempt_->epoch);
    for (Reason* stored : {&attempt_->reason, &job_.reason}) *stored = reason;
    for (std::string* stored : {&attempt_->message, &job_.message}) *stored = why;
    attempt_changed_ = true;
    StopRanks(graceful);
    return true;
  }

  Transaction Finish() {
    if (job_changed_) transaction_.job = std::move(job_);
    if (attempt_changed_) transaction_.attempt = std::move(attempt_);
    return std::move(transaction_);
  }

 private:
  JobRecord job_;
  HeapOptional<AttemptRecord> attempt_;
  std::optional<Reason> previous_reason_;
  int64_t failures_;
  Tally tally_;
  RetryRules retry_;
  size_t phase_;
  double now_;
  Transaction transaction_;
  bool job_changed_ = false;
  bool attempt_changed_ = false;
};

}  // namespace weft::coordinator
