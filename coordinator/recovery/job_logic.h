#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "common/heap_optional.h"
#include "common/status.h"
#include "coordinator/recovery/retry_delay.h"
#include "coordinator/recovery/state_machine.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

/// What attempts at a job that have ended add up to, since a user last asked for a retry.
struct Tally {
  double run_seconds = 0;       ///< From dispatch to the end of each, over all phases.
  int64_t memory_failures = 0;  ///< Of the phase that runs or is next, as the three below.
  int64_t numerics_failures = 0;
  int64_t hangs = 0;
  int64_t machine_failures = 0;
  int64_t preemptions = 0;  ///< Of all phases.
};

/// What decisions about a job need: it, and its newest and last but one attempts.
struct JobCase {
  JobRecord job;
  HeapOptional<AttemptRecord> attempt;    ///< The newest; a job that waits has none as a rule.
  std::optional<Reason> previous_reason;  ///< Why the attempt before `attempt` ended.
  int64_t failures = 0;                   ///< FailuresInARow up to the one before `attempt`.
  RetryRules retry;
  size_t phase = 0;  ///< The one that runs or is next (PhaseAfter).
  Tally tally;       ///< Of the attempts before `attempt`.
};

/// Adds an attempt that has ended; those up to epoch `retried_from` do not count.
void Count(const AttemptRecord& attempt, int64_t retried_from, Tally& tally);

/// Times that attempts at it were stopped for other jobs.
int64_t Preemptions(const JobCase& current);

/// Time for which attempts at the job ran, up to `now`, since a user last asked for a retry. Unit:
/// seconds.
double RunSeconds(const JobCase& current, double now);

/// The ranks of that attempt, the one that runs, on that worker; null: none of them may be alive.
const PlacementRecord* LivingPlacement(const JobCase& current, int64_t epoch,
                                       const std::string& worker_id);

/// The phase of a job that runs or is next after these attempts at it, from 0: each that COMPLETED
/// has ended one. Nothing else says so, and it is stored with the end of the attempt in one change.
size_t PhaseAfter(const JobSpec& job, std::span<const AttemptRecord> attempts);

/// The attempts, of all those at a job, oldest first, at the phase that runs or is next.
std::span<const AttemptRecord> AttemptsAtPhase(std::span<const AttemptRecord> attempts);

/// The newest of them; null before the first.
const AttemptRecord* LastOfPhase(const JobCase& current);

/// What a worker says about its ranks of one attempt, or what is concluded about them.
struct PlacementReport {
  std::string worker_id;
  int64_t epoch = 0;
  PlacementEvent event = PlacementEvent::kStarted;
  Reason reason = Reason::kNone;  ///< With kFailed and kLost.
  std::string message;
  std::string summary_json;  ///< With kFinished, from the worker of rank 0.
  int64_t signal = 0;        ///< With kFailed: what killed the rank that failed first; 0: none.
  /// Lowest of the ranks that it is about; none: those that the worker has.
  std::optional<int64_t> first_rank = std::nullopt;
};

/// Whether ranks whose lowest is `first_rank` are those of the placement, and not others of
/// the attempt that were on its worker before.
bool AreRanksOf(const AttemptRecord& attempt, const PlacementRecord& placement,
                std::optional<int64_t> first_rank);

/// The life of a job as pure functions: from what is stored and what happened to the one atomic
/// change that follows. An empty transaction means that nothing changes. The caller commits it
/// before any effect shows; a crash in between loses nothing but the question.

/// Starts attempt last_epoch + 1 with `plan`; kConflict unless the job is queued.
Result<Transaction> DispatchAttempt(const JobCase& current, const Plan& plan, double now);

/// A report of the right epoch or not: older ones, and those of a worker that has no placement or
/// other ranks, only become an event "late report".
Result<Transaction> ApplyReport(const JobCase& current, const PlacementReport& report, double now);

/// The attempt cannot go on, but its ranks may still be alive (a lease ran out): stops the others
/// and waits. Nothing when the attempt has ended or another one runs.
Result<Transaction> InterruptAttempt(const JobCase& current, int64_t epoch, Reason reason,
                                     const std::string& message, double now);

/// Has the ranks save and stop, so that the next attempt runs by another plan; `why` is for people.
/// Such an end does not count against max_attempts. Nothing unless this attempt is RUNNING.
Result<Transaction> ReplanAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                  double now);

/// A worker of the attempt drains: has all ranks save and stop, so that the job goes on elsewhere
/// from that very step. Such an end does not count against max_attempts. Nothing unless this
/// attempt is STARTING or RUNNING.
Result<Transaction> DrainAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                 double now);

/// A job that goes first needs the workers: has the ranks save and stop, and the job is queued
/// again. Such an end does not count against max_attempts. Nothing unless this attempt is STARTING
/// or RUNNING.
Result<Transaction> PreemptAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                   double now);

/// The job must not go on, for kTimeLimit or kJobBeforeFailed: one that is queued has FAILED at
/// once, one that is STARTING or RUNNING saves and stops first. Nothing in other states.
Result<Transaction> GiveUpJob(const JobCase& current, Reason reason, const std::string& why,
                              double now);

/// Ranks that were asked to stop did not: kills those that are left. Nothing when none is.
Result<Transaction> KillAttempt(const JobCase& current, int64_t epoch, const std::string& why,
                                double now);

/// The ranks of the attempt save and stop as they were asked to; nothing failed.
bool SavesAndStops(const AttemptRecord& attempt);

/// When the next attempt at a QUEUED job may start, in seconds since 1970 UTC; nullopt: at once.
std::optional<double> RetryAt(const JobCase& current);

/// A user asks it to end. A second time while CANCELLING: ranks are killed at once.
Result<Transaction> CancelJob(const JobCase& current, double now);

/// A user asks for another run; kConflict unless FAILED or CANCELLED.
Result<Transaction> RetryJob(const JobCase& current, double now);

/// A user asks it to save, stop and wait; nothing when it does already, kConflict when it has ended
/// or is being cancelled.
Result<Transaction> PauseJob(const JobCase& current, double now);

/// A user asks it to go on; kConflict unless PAUSED or PAUSING.
Result<Transaction> ResumeJob(const JobCase& current, double now);

/// Moves it to another queue or priority, where given; kConflict when it has ended.
Result<Transaction> UpdateJob(const JobCase& current, const std::optional<std::string>& queue,
                              std::optional<int64_t> priority, double now);

/// A failure that no retry can help.
bool IsFatal(Reason reason);

/// A failure of a machine, which says nothing about the job: it does not count against
/// max_attempts. Failures in a row without a new checkpoint still end the job, whatever their
/// reasons.
bool IsMachineFailure(Reason reason);

}  // namespace weft::coordinator
