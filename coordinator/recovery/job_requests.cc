// What users ask of a job: to end, to run again, to wait, to move in the queues.
#include "coordinator/recovery/job_change.h"

namespace weft::coordinator {

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
  const bool stops = job.state == JobState::kCancelling;
  job.reason = Reason::kCancelledByUser;
  job.message = stops                         ? "cancel asked for; ranks are stopping"
                : before == JobState::kPaused ? "cancelled by the user while it was paused"
                                              : "cancelled by the user before it started";
  const bool saves = change.attempt() && SavesAndStops(*change.attempt());
  if (stops) change.StopRanks(before == JobState::kRunning || saves);
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
  job.retried_from = job.last_epoch;
  job.reason = Reason::kNone;
  job.message.clear();
  return change.Finish();
}

Result<Transaction> PauseJob(const JobCase& current, double now) {
  Change change(current, now);
  const JobState before = current.job.state;
  const char* const why = "pause asked for; ranks save and stop";
  if (before == JobState::kStarting || before == JobState::kRunning) {
    change.SaveAndStop(JobEvent::kPause, "pause", Reason::kPausedByUser, why);
    return change.Finish();
  }
  const JobOutcome outcome = change.Fire(JobEvent::kPause);
  if (outcome == JobOutcome::kRefuse) {
    return ConflictError("job " + current.job.id + " is " + std::string(Name(before)) +
                         " and cannot be paused");
  }
  if (outcome == JobOutcome::kRecord) return Transaction{};
  JobRecord& job = change.job();
  job.reason = Reason::kPausedByUser;
  job.message = job.state == JobState::kPaused ? kPausedMessage : why;
  return change.Finish();
}

Result<Transaction> ResumeJob(const JobCase& current, double now) {
  Change change(current, now);
  if (change.Fire(JobEvent::kResume) != JobOutcome::kMove) {
    return ConflictError("job " + current.job.id + " is " + std::string(Name(current.job.state)) +
                         "; only PAUSED and PAUSING jobs can be resumed");
  }
  JobRecord& job = change.job();
  job.reason = Reason::kNone;
  job.message = job.state == JobState::kRecovering
                    ? "resumed while its ranks were stopping: it goes on when they have stopped"
                    : "";
  return change.Finish();
}

Result<Transaction> UpdateJob(const JobCase& current, const std::optional<std::string>& queue,
                              std::optional<int64_t> priority, double now) {
  Change change(current, now);
  JobRecord& job = change.job();
  if (IsTerminal(job.state)) {
    return ConflictError("job " + job.id + " is " + std::string(Name(job.state)) +
                         " and is in no queue any more");
  }
  std::string what;
  if (queue && *queue != job.queue) {
    what = "queue " + job.queue + " -> " + *queue;
    job.queue = *queue;
  }
  if (priority && *priority != job.priority) {
    what += (what.empty() ? "priority " : ", priority ") + std::to_string(job.priority) + " -> " +
            std::to_string(*priority);
    job.priority = *priority;
  }
  if (what.empty()) return Transaction{};
  change.Event("update", what, job.last_epoch);
  change.SaveJob();
  return change.Finish();
}

}  // namespace weft::coordinator
