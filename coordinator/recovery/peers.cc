#include "coordinator/recovery/peers.h"

#include <algorithm>
#include <map>

#include "coordinator/recovery/job_change.h"

namespace weft::coordinator {
namespace {

bool IsMember(const PlacementRecord& placement) {
  return placement.part == PlacementPart::kMember;
}

/// Whether it is done or goes on.
bool Counts(const PlacementRecord& placement) {
  return IsMember(placement) &&
         (!IsGone(placement.state) || placement.state == PlacementState::kFinished);
}

/// Ascending.
std::vector<int64_t> LivingRanks(const AttemptRecord& attempt, PlacementPart part) {
  std::vector<int64_t> ranks;
  for (const PlacementRecord& placement : attempt.placements) {
    if (placement.part != part || IsGone(placement.state)) continue;
    ranks.insert(ranks.end(), placement.ranks.begin(), placement.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int64_t LeastRanks(const JobRecord& job) {
  return std::max<int64_t>(job.spec.resources.min_ranks, 1);
}

/// Whether enough members are left without that placement.
bool IsSpare(const JobRecord& job, const AttemptRecord& attempt, const PlacementRecord& without) {
  if (attempt.membership == 0 || attempt.ended_at || job.state != JobState::kRunning) return false;
  int64_t left = 0;
  bool ends = false;
  for (const PlacementRecord& placement : attempt.placements) {
    if (&placement == &without || !Counts(placement)) continue;
    left += std::ssize(placement.ranks);
    ends = ends || placement.state == PlacementState::kFinished;
  }
  // Those that have ended rely on the first rank to report the end: nobody would do it any more.
  if (ends && HasFirstRank(attempt, without)) return false;
  return left >= LeastRanks(job);
}

/// "rank 2 on worker a", "ranks 2 and 3 on worker a".
std::string Named(const PlacementRecord& placement) {
  std::string text = placement.ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < placement.ranks.size(); ++i) {
    text += (i == 0                            ? ""
             : i + 1 == placement.ranks.size() ? " and "
                                               : ", ") +
            std::to_string(placement.ranks[i]);
  }
  return text + " on worker " + placement.worker_id;
}

/// The members are others than before: the next membership, and its plan.
void NextMembership(AttemptRecord& attempt) {
  ++attempt.membership;
  std::map<int64_t, std::string> workers;
  for (const PlacementRecord& placement : attempt.placements) {
    if (!Counts(placement)) continue;
    for (const int64_t rank : placement.ranks) workers[rank] = placement.worker_id;
  }
  Plan& plan = attempt.plan;
  const auto before = static_cast<double>(std::max<int64_t>(plan.mesh.data, 1));
  plan.rank_workers.clear();
  for (const auto& entry : workers) plan.rank_workers.push_back(entry.second);
  plan.mesh.data = std::max<int64_t>(std::ssize(workers), 1);
  // Each makes as many local steps as before.
  const double faster = static_cast<double>(plan.mesh.data) / before;
  plan.prediction.step_seconds /= faster;
  plan.prediction.tokens_per_second *= faster;
}

std::string NowTrain(const AttemptRecord& attempt) {
  const auto ranks = static_cast<int64_t>(LivingMembers(attempt).size());
  return std::to_string(ranks) + (ranks == 1 ? " rank goes on" : " ranks go on") + " (membership " +
         std::to_string(attempt.membership) + ")";
}

PlacementRecord* FindOn(AttemptRecord& attempt, const std::string& worker_id) {
  const auto found =
      std::find_if(attempt.placements.begin(), attempt.placements.end(),
                   [&](const PlacementRecord& each) { return each.worker_id == worker_id; });
  return found == attempt.placements.end() ? nullptr : &*found;
}

bool RunsElastically(const JobCase& current, int64_t epoch) {
  return current.attempt && current.attempt->epoch == epoch && current.attempt->membership > 0 &&
         !current.attempt->ended_at && current.job.state == JobState::kRunning;
}

/// The members stay, and come together in another membership.
void RegroupMembers(Change& change, const std::string& why) {
  AttemptRecord& attempt = *change.attempt();
  ++attempt.membership;
  change.SaveAttempt();
  change.Event("peers regroup", why + "; " + NowTrain(attempt), attempt.epoch);
}

void Stop(Change& change, PlacementRecord& placement) {
  const int64_t epoch = change.attempt()->epoch;
  placement.part = PlacementPart::kLeft;
  change.RemoveIntent(placement.worker_id, epoch, IntentKind::kStart);
  change.AddIntent(placement.worker_id, epoch, IntentKind::kStop, /*graceful=*/false);
  change.SaveAttempt();
}

}  // namespace

std::vector<int64_t> LivingMembers(const AttemptRecord& attempt) {
  return LivingRanks(attempt, PlacementPart::kMember);
}

std::vector<int64_t> JoiningRanks(const AttemptRecord& attempt) {
  return LivingRanks(attempt, PlacementPart::kJoining);
}

std::vector<int64_t> GoneRanks(const AttemptRecord& attempt) {
  std::vector<int64_t> ranks;
  for (const PlacementRecord& placement : attempt.placements) {
    if (!IsGone(placement.state) || placement.state == PlacementState::kFinished) continue;
    ranks.insert(ranks.end(), placement.ranks.begin(), placement.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool HasFirstRank(const AttemptRecord& attempt, const PlacementRecord& placement) {
  if (placement.ranks.empty()) return true;  // of an earlier release
  if (attempt.membership == 0) return placement.ranks.front() == 0;
  if (!IsMember(placement)) return false;
  // One that has finished has done it to the end.
  int64_t first = placement.ranks.front();
  for (const PlacementRecord& other : attempt.placements) {
    if (Counts(other) && !other.ranks.empty()) first = std::min(first, other.ranks.front());
  }
  return placement.ranks.front() == first;
}

bool MaySpare(const JobCase& current, int64_t epoch, const std::string& worker_id) {
  if (!RunsElastically(current, epoch)) return false;
  const auto& placements = current.attempt->placements;
  const auto found = std::find_if(placements.begin(), placements.end(),
                                  [&](const auto& each) { return each.worker_id == worker_id; });
  if (found == placements.end()) return false;
  return !IsMember(*found) || IsSpare(current.job, *current.attempt, *found);
}

Result<Transaction> AddPeer(const JobCase& current, int64_t epoch, const std::string& worker_id,
                            double now) {
  if (!RunsElastically(current, epoch)) return Transaction{};
  Change change(current, now);
  AttemptRecord& attempt = *change.attempt();
  int64_t number = 0;
  for (const PlacementRecord& placement : attempt.placements) {
    if (placement.state == PlacementState::kFinished) return Transaction{};
    for (const int64_t rank : placement.ranks) number = std::max(number, rank + 1);
  }
  PlacementRecord* placement = FindOn(attempt, worker_id);
  if (placement == nullptr) {
    placement = &attempt.placements.emplace_back();
  } else if (!IsGone(placement->state)) {
    return Transaction{};
  }
  *placement = {worker_id, {number}, PlacementState::kDispatched, PlacementPart::kJoining};
  change.SaveAttempt();
  change.RemoveIntent(worker_id, epoch, IntentKind::kStop);
  change.AddIntent(worker_id, epoch, IntentKind::kStart);
  change.Event("peer starts", Named(*placement) + " starts, to join", epoch);
  return change.Finish();
}

Result<Transaction> TakeInPeer(const JobCase& current, int64_t epoch, const std::string& worker_id,
                               double now) {
  if (!RunsElastically(current, epoch)) return Transaction{};
  Change change(current, now);
  AttemptRecord& attempt = *change.attempt();
  PlacementRecord* placement = FindOn(attempt, worker_id);
  if (placement == nullptr || IsGone(placement->state) ||
      placement->part != PlacementPart::kJoining) {
    return Transaction{};
  }
  placement->part = PlacementPart::kMember;
  NextMembership(attempt);
  change.SaveAttempt();
  change.Event("peer joined", Named(*placement) + "; " + NowTrain(attempt), epoch);
  return change.Finish();
}

Result<Transaction> LetPeersGo(const JobCase& current, int64_t epoch,
                               const std::vector<std::string>& workers, const std::string& why,
                               double now) {
  if (!RunsElastically(current, epoch)) return Transaction{};
  Change change(current, now);
  AttemptRecord& attempt = *change.attempt();
  for (const std::string& worker_id : workers) {
    PlacementRecord* placement = FindOn(attempt, worker_id);
    if (placement == nullptr || IsGone(placement->state) ||
        placement->part == PlacementPart::kLeft) {
      continue;
    }
    if (placement->part == PlacementPart::kJoining) {
      Stop(change, *placement);
      continue;
    }
    if (!IsSpare(change.job(), attempt, *placement)) continue;
    placement->part = PlacementPart::kLeft;
    NextMembership(attempt);
    change.SaveAttempt();
    change.Event("peer left", Named(*placement) + ": " + why + "; " + NowTrain(attempt), epoch);
  }
  return change.Finish();
}

Result<Transaction> RenewMembership(const JobCase& current, int64_t epoch, double now) {
  if (!RunsElastically(current, epoch)) return Transaction{};
  Change change(current, now);
  RegroupMembers(change, "no rank is lost, but they do not reach each other");
  return change.Finish();
}

bool GoOnWithout(Change& change, PlacementRecord& placement, Reason reason,
                 const std::string& why) {
  AttemptRecord& attempt = *change.attempt();
  if (attempt.membership == 0) return false;
  if (placement.part == PlacementPart::kLeft) {
    // The others may be amid what they do with it, and have not been told that it is gone.
    if (reason != Reason::kNone && change.job().state == JobState::kRunning) {
      RegroupMembers(change, Named(placement) + " was lost as it left");
    }
    return true;
  }
  if (placement.part == PlacementPart::kMember) {
    if (IsFatal(reason) || !IsSpare(change.job(), attempt, placement)) return false;
    placement.part = PlacementPart::kLeft;
    NextMembership(attempt);
  } else {
    placement.part = PlacementPart::kLeft;
  }
  change.SaveAttempt();
  change.Event("peer left", Named(placement) + ": " + why + "; " + NowTrain(attempt),
               attempt.epoch);
  return true;
}

void StopOthers(Change& change) {
  for (PlacementRecord& placement : change.attempt()->placements) {
    if (!IsMember(placement) && !IsGone(placement.state)) Stop(change, placement);
  }
}

}  // namespace weft::coordinator
