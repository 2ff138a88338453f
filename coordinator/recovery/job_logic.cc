#include "coordinator/recovery/job_logic.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/clock.h"
#include "common/spec/elastic_ranks.h"
#include "common/spec/phases.h"
#include "coordinator/recovery/job_change.h"
#include "coordinator/recovery/ledger.h"
#include "coordinator/recovery/peers.h"

namespace weft::coordinator {
namespace {

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
    case Reason::kSilentCorruption:
      return 3;
    case Reason::kWorkerLost:
    case Reason::kDeviceFailed:
    // What breaks while the ranks of a draining worker end is part of that.
    case Reason::kDrained:
      return 2;
    case Reason::kNone:
    case Reason::kReplanned:
    case Reason::kPreempted:
    case Reason::kPausedByUser:
    case Reason::kTimeLimit:
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

bool Completed(const AttemptRecord& attempt) {
  return attempt.reason == Reason::kCompleted;
}

/// "attempt 3 of 10 starts in 3.2 s, at 2026-01-31T12:00:00.000Z"; after a failure of a machine,
/// which is none of the 10, "the next attempt starts in ...".
std::string NextTry(const JobRecord& job, Reason failure, double now, double at) {
  const auto tenths = std::llround((at - now) * 10);
  const std::string which = IsMachineFailure(failure)
                                ? "the next attempt"
                                : "attempt " +
                                      std::to_string(job.last_epoch - job.budget_from + 1) +
                                      " of " + std::to_string(job.spec.retry.max_attempts);
  return which + " starts in " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
         " s, at " + FormatTime(at);
}

/// Why the job is not tried again after this attempt, which a retry might have helped.
std::string GaveUp(const Change& change, const JobRecord& job, const AttemptRecord& attempt) {
  const std::optional<FailureLimit> limit = change.LimitOf(attempt.reason);
  const bool by_limit = limit && limit->before + 1 >= limit->most;
  const int64_t used = job.last_epoch - job.budget_from;
  std::string attempts = std::to_string(used) + " attempts";
  if (by_limit && IsMachineFailure(attempt.reason)) {
    attempts = std::to_string(limit->most) + " attempts that machines ended";
  } else if (!by_limit && used < job.spec.retry.max_attempts &&
             change.FailuresInARow() >= job.spec.retry.max_attempts) {
    attempts = std::to_string(change.FailuresInARow()) +
               " failures in a row with no checkpoint in between";
  }
  return "gave up after " + attempts +
         (by_limit ? ", as " + std::string(limit->field) + " says" : "") +
         "; the last one: " + std::string(Name(attempt.reason)) + ": " + attempt.message;
}

/// Every rank of the attempt is gone: the job ends, or is queued again.
void CloseAttempt(Change& change, double now) {
  AttemptRecord& attempt = *change.attempt();
  JobRecord& job = change.job();
  bool finished =
      std::all_of(attempt.placements.begin(), attempt.placements.end(), [](const auto& placement) {
        return placement.state == PlacementState::kFinished ||
               placement.part != PlacementPart::kMember;
      });
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
    } else if (job.state == JobState::kPaused) {
      job.reason = Reason::kPausedByUser;
      job.message = std::string(kPausedMessage) + "; " + job.message;
    }
    job.budget_from = job.last_epoch;  // each phase may be tried as often
    return;
  }
  bool cancelled = job.state == JobState::kCancelling;
  if (SavesAndStops(attempt) || IsMachineFailure(attempt.reason)) ++job.budget_from;
  if (change.Fire(JobEvent::kGone) != JobOutcome::kMove) return;
  change.EndAttempt(cancelled ? Reason::kCancelledByUser : Reason::kNone);
  if (cancelled) {
    job.reason = Reason::kCancelledByUser;
    job.message = "cancelled by the user";
  } else if (job.state == JobState::kFailed && !IsFatal(attempt.reason)) {
    job.reason = Reason::kRetriesExhausted;
    job.message = GaveUp(change, job, attempt);
  } else if (job.state == JobState::kFailed) {
    job.reason = attempt.reason;
    job.message = attempt.message;
  } else if (job.state == JobState::kPaused) {
    job.reason = Reason::kPausedByUser;
    job.message = kPausedMessage;
    if (!SavesAndStops(attempt)) job.message += "; its last attempt failed: " + attempt.message;
  } else if (const std::optional<double> at = change.RetryAt()) {
    const std::string next = NextTry(job, attempt.reason, now, *at);
    job.message += "; " + next;
    change.Event("retry", next, attempt.epoch);
  }
}

}  // namespace

const PlacementRecord* LivingPlacement(const JobCase& current, int64_t epoch,
                                       const std::string& worker_id) {
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at) {
    return nullptr;
  }
  for (const PlacementRecord& placement : current.attempt->placements) {
    if (placement.worker_id == worker_id && !IsGone(placement.state)) return &placement;
  }
  return nullptr;
}

bool AreRanksOf(const AttemptRecord& attempt, const PlacementRecord& placement,
                std::optional<int64_t> first_rank) {
  if (attempt.membership == 0 || !first_rank || placement.ranks.empty()) return true;
  return placement.ranks.front() == *first_rank;
}

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
  return reason == Reason::kUserError || reason == Reason::kNumerics ||
         reason == Reason::kTimeLimit;
}

bool IsMachineFailure(Reason reason) {
  return reason == Reason::kWorkerLost || reason == Reason::kDeviceFailed ||
         reason == Reason::kMachineUnhealthy || reason == Reason::kSilentCorruption;
}

void Count(const AttemptRecord& attempt, int64_t retried_from, Tally& tally) {
  if (attempt.epoch <= retried_from || !attempt.ended_at) return;
  tally.run_seconds += std::max(0.0, *attempt.ended_at - attempt.started_at);
  tally.memory_failures += attempt.reason == Reason::kOutOfMemory ? 1 : 0;
  tally.numerics_failures += attempt.reason == Reason::kNumerics ? 1 : 0;
  tally.hangs += attempt.reason == Reason::kHung ? 1 : 0;
  tally.machine_failures += IsMachineFailure(attempt.reason) ? 1 : 0;
  tally.preemptions += attempt.reason == Reason::kPreempted ? 1 : 0;
  if (Completed(attempt)) {
    tally.memory_failures = tally.numerics_failures = tally.hangs = 0;
    tally.machine_failures = 0;
  }
}

int64_t Preemptions(const JobCase& current) {
  Tally tally = current.tally;
  if (current.attempt) Count(*current.attempt, current.job.retried_from, tally);
  return tally.preemptions;
}

double RunSeconds(const JobCase& current, double now) {
  Tally tally = current.tally;
  if (!current.attempt || current.attempt->epoch <= current.job.retried_from) return 0;
  AttemptRecord newest = *current.attempt;
  if (!newest.ended_at) newest.ended_at = now;
  Count(newest, current.job.retried_from, tally);
  return tally.run_seconds;
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
  attempt.membership = RanksComeAndGo(job.spec, plan) ? 1 : 0;
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
  if (placement == nullptr || change.attempt()->ended_at ||
      !AreRanksOf(*change.attempt(), *placement, report.first_rank)) {
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
      StopOthers(change);
      break;
    case PlacementEvent::kFailed: {
      const Reason why = report.reason == Reason::kNone ? Reason::kRankDied : report.reason;
      if (!GoOnWithout(change, *placement, why, text)) Interrupt(change, why, text, now);
      break;
    }
    case PlacementEvent::kStopped:
      if (placement->part != PlacementPart::kMember) {
        (void)GoOnWithout(change, *placement, Reason::kNone, text);
        break;
      }
      // Unasked, because the worker drains: all ranks agreed to stop, and some may still be saving.
      // Only where its ranks never started have the others nothing to save, and wait in vain.
      if (!change.SaveAndStop(JobEvent::kDrain, "drain", Reason::kDrained,
                              "worker " + report.worker_id + " drains: its ranks stopped",
                              started) &&
          !started && (job.state == JobState::kRecovering || job.state == JobState::kPausing)) {
        change.StopRanks(false);
      }
      break;
    case PlacementEvent::kLost: {
      const Reason why = report.reason == Reason::kNone ? Reason::kWorkerLost : report.reason;
      if (!GoOnWithout(change, *placement, why, text)) Interrupt(change, why, text, now);
      break;
    }
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

namespace {

/// SaveAndStop of this attempt; nothing unless it is the newest one and has not ended.
Transaction SaveAndStop(const JobCase& current, int64_t epoch, JobEvent event,
                        const std::string& kind, Reason reason, const std::string& why,
                        double now) {
  Change change(current, now);
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at ||
      !change.SaveAndStop(event, kind, reason, why)) {
    return {};
  }
  return change.Finish();
}

}  // namespace

Result<Transaction> ReplanAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                  double now) {
  return SaveAndStop(current, epoch, JobEvent::kReplan, "replan", Reason::kReplanned, why, now);
}

Result<Transaction> DrainAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                 double now) {
  return SaveAndStop(current, epoch, JobEvent::kDrain, "drain", Reason::kDrained, why, now);
}

Result<Transaction> PreemptAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                   double now) {
  return SaveAndStop(current, epoch, JobEvent::kPreempt, "preempt", Reason::kPreempted, why, now);
}

Result<Transaction> GiveUpJob(const JobCase& current, Reason reason, const std::string& why,
                              double now) {
  Change change(current, now);
  if (current.job.state != JobState::kQueued) {
    const std::string kind = reason == Reason::kTimeLimit ? "time limit" : "give up";
    if (!change.SaveAndStop(JobEvent::kGiveUp, kind, reason, why)) return Transaction{};
    return change.Finish();
  }
  change.Fire(JobEvent::kGiveUp);
  change.job().reason = reason;
  change.job().message = why;
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
  switch (attempt.reason) {
    case Reason::kReplanned:
    case Reason::kDrained:
    case Reason::kPreempted:
    case Reason::kPausedByUser:
    case Reason::kTimeLimit:
      return true;
    default:
      return false;
  }
}

std::optional<double> RetryAt(const JobCase& current) {
  const JobRecord& job = current.job;
  const HeapOptional<AttemptRecord>& last = current.attempt;
  if (job.state != JobState::kQueued || !last || !last->ended_at || !HasFailed(*last)) {
    return std::nullopt;
  }
  const int64_t failures =
      FailuresInARow(current.failures, *last, job.progress.checkpoint_step, job.retried_from);
  if (failures == 0) return std::nullopt;  // a user's retry makes a new start
  return *last->ended_at + RetryDelaySeconds(current.retry, failures, job.id, last->epoch);
}

}  // namespace weft::coordinator
