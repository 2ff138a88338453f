// Running attempts whose ranks come and go (recovery/peers.h): who learns of it, who joins, who
// leaves.
#include <algorithm>

#include "common/log.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {

void Service::SeePeer(LiveJob& live, const std::string& worker_id, const PlacementRecord& placement,
                      const RunningAttempt& item) {
  const AttemptRecord& attempt = *live.current.attempt;
  if (attempt.membership == 0) return;
  if (item.membership < attempt.membership) TellMembership(attempt, worker_id);
  const bool waits = item.activity.activity == "joining";
  if (waits && placement.part == PlacementPart::kJoining) {
    Change(
        item.job_id,
        [this, epoch = item.epoch, worker_id](const JobCase& current) {
          return TakeInPeer(current, epoch, worker_id, clock_.UnixSeconds());
        },
        [](const Status&) {}, false);
    return;
  }
  if (placement.part == PlacementPart::kMember) CheckPeersMeet(live, item);
}

void Service::CheckPeersMeet(LiveJob& live, const RunningAttempt& item) {
  const AttemptRecord& attempt = *live.current.attempt;
  const bool all_wait = std::all_of(
      attempt.placements.begin(), attempt.placements.end(), [&](const PlacementRecord& placement) {
        if (IsGone(placement.state) || placement.part != PlacementPart::kMember) return true;
        const auto track = live.placements.find(placement.worker_id);
        return track != live.placements.end() && track->second.activity.activity == "joining";
      });
  if (!all_wait || item.membership != attempt.membership) {
    live.peers_wait_from.reset();
    return;
  }
  const Duration now = clock_.Monotonic();
  if (!live.peers_wait_from) live.peers_wait_from = now;
  // Were one of them lost, that would be known by then.
  if (now - *live.peers_wait_from < options_.lease + options_.Margin()) return;
  live.peers_wait_from.reset();
  Change(
      item.job_id,
      [this, epoch = item.epoch](const JobCase& current) {
        return RenewMembership(current, epoch, clock_.UnixSeconds());
      },
      [](const Status&) {}, false);
}

void Service::TellMembership(const AttemptRecord& attempt, const std::string& worker_id) {
  const auto session = sessions_.find(worker_id);
  if (session == sessions_.end() || !session->second.link) return;
  session->second.link->SetMembership({attempt.job_id, attempt.epoch, attempt.membership,
                                       LivingMembers(attempt), GoneRanks(attempt)});
}

void Service::PeersChanged(LiveJob& live, const AttemptRecord& before, const Transaction& change) {
  const AttemptRecord& attempt = *change.attempt;
  for (const PlacementRecord& placement : attempt.placements) {
    const auto same = std::find_if(
        before.placements.begin(), before.placements.end(), [&](const PlacementRecord& other) {
          return other.worker_id == placement.worker_id && other.ranks == placement.ranks;
        });
    if (same != before.placements.end()) continue;
    live.placements[placement.worker_id] = {};
    live.placements[placement.worker_id].expected_from = clock_.Monotonic();
  }
  for (const EventRecord& event : change.events) {
    if (event.kind == "peer joined") metrics_.PeerJoined();
    if (event.kind != "peer left") continue;
    metrics_.PeerLeft();
    live.peer_left_at = clock_.Monotonic();
  }
  if (attempt.membership == before.membership) return;
  WEFT_LOG_INFO << "job " << attempt.job_id << ", attempt " << attempt.epoch << ": membership "
                << attempt.membership << " of " << attempt.plan.rank_workers.size() << " ranks";
  for (const PlacementRecord& placement : attempt.placements) {
    if (!IsGone(placement.state)) TellMembership(attempt, placement.worker_id);
  }
}

std::optional<std::set<std::string>> Service::NoPeersOn(const LiveJob& live) const {
  const HeapOptional<AttemptRecord>& attempt = live.current.attempt;
  if (!attempt || attempt->membership == 0) return std::nullopt;
  const bool lately = live.peer_left_at && ToSeconds(clock_.Monotonic() - *live.peer_left_at) <
                                               options_.scale_up.after_seconds;
  std::set<std::string> workers = live.joins_on;
  for (const PlacementRecord& placement : attempt->placements) {
    // A rank that ended on a machine that is still there may do so again at once.
    const bool ended = lately && placement.state != PlacementState::kLost;
    if (!IsGone(placement.state) || ended) workers.insert(placement.worker_id);
  }
  return workers;
}

void Service::Join(const JoinDecision& join) {
  LiveJob& live = *live_.at(join.job_id);
  live.joins_on.insert(join.worker_id);  // no pass gives its room to others meanwhile
  Change(
      join.job_id,
      [this, epoch = live.current.attempt->epoch,
       worker_id = join.worker_id](const JobCase& current) {
        return AddPeer(current, epoch, worker_id, clock_.UnixSeconds());
      },
      [this, join](const Status&) {
        const auto it = live_.find(join.job_id);
        if (it != live_.end()) it->second->joins_on.erase(join.worker_id);
      },
      false);
}

bool Service::ShrinkByPeers(const ResizeDecision& resize) {
  const LiveJob& live = *live_.at(resize.job_id);
  const AttemptRecord& attempt = *live.current.attempt;
  if (attempt.membership == 0) return false;
  const std::vector<std::string>& kept = resize.change.plan.rank_workers;
  std::vector<std::string> leave;
  for (const PlacementRecord& placement : attempt.placements) {
    if (IsGone(placement.state) || placement.part == PlacementPart::kLeft) continue;
    if (std::find(kept.begin(), kept.end(), placement.worker_id) == kept.end()) {
      leave.push_back(placement.worker_id);
    }
  }
  if (leave.empty()) return false;
  Change(
      resize.job_id,
      [this, epoch = attempt.epoch, leave, why = resize.change.why](const JobCase& current) {
        return LetPeersGo(current, epoch, leave, why, clock_.UnixSeconds());
      },
      [](const Status&) {}, false);
  return true;
}

}  // namespace weft::coordinator
