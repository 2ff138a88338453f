#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {

class Change;

// Ranks that come and go between the outer steps of a running attempt (RanksComeAndGo). Each time
// they do, the attempt has a membership with a greater number. Changes are as those of job_logic.h:
// pure, and empty when nothing is to be changed.

/// The ranks that are members and may be alive, ascending: the first one does what rank 0 does
/// where ranks stay.
std::vector<int64_t> LivingMembers(const AttemptRecord& attempt);
/// The ranks that start to join, and are no members yet.
std::vector<int64_t> JoiningRanks(const AttemptRecord& attempt);
/// The ranks that are no more and were members once.
std::vector<int64_t> GoneRanks(const AttemptRecord& attempt);
/// Whether the rank that reports for all is on the worker of `placement`.
bool HasFirstRank(const AttemptRecord& attempt, const PlacementRecord& placement);

/// Whether the job goes on without the ranks on that worker, in the same attempt: it is RUNNING,
/// and at least resources.min_ranks members are left.
bool MaySpare(const JobCase& current, int64_t epoch, const std::string& worker_id);

/// A rank starts on a worker that has none of this attempt, or has none any more; it becomes a
/// member when it is ready. Nothing unless the attempt runs and has not finished.
Result<Transaction> AddPeer(const JobCase& current, int64_t epoch, const std::string& worker_id,
                            double now);

/// The ranks that start on the worker are ready: they are members from the next outer step on.
Result<Transaction> TakeInPeer(const JobCase& current, int64_t epoch, const std::string& worker_id,
                               double now);

/// The ranks on these workers leave at the next outer step; `why` is for people. Those that only
/// start are stopped. Nothing of a worker without which the job cannot go on (MaySpare).
Result<Transaction> LetPeersGo(const JobCase& current, int64_t epoch,
                               const std::vector<std::string>& workers, const std::string& why,
                               double now);

/// The members cannot reach each other, and none is lost: they come together anew.
Result<Transaction> RenewMembership(const JobCase& current, int64_t epoch, double now);

/// The ranks of `placement`, of the attempt of `change`, are gone for `reason`. Whether the job
/// goes on without them, which it then does; false: nothing changes.
bool GoOnWithout(Change& change, PlacementRecord& placement, Reason reason, const std::string& why);

/// A member has trained to the end: those that are none will not come to it.
void StopOthers(Change& change);

}  // namespace weft::coordinator
