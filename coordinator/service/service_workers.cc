// Workers that attach, and the ranks that they say they have.
#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/check_profile.h"
#include "common/version.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Attached or not; each counts in every pass of the scheduler.
constexpr int64_t kMostWorkers = 10000;

}  // namespace

std::vector<std::string> Service::JobsOn(const std::string& worker_id) const {
  auto it = placed_.find(worker_id);
  if (it == placed_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

void Service::SetPlaced(const AttemptRecord& attempt) {
  std::lock_guard lock(view_mutex_);
  for (const PlacementRecord& placement : attempt.placements) {
    if (IsGone(placement.state)) {
      placed_[placement.worker_id].erase(attempt.job_id);
    } else {
      placed_[placement.worker_id].insert(attempt.job_id);
    }
  }
}

Session* Service::SessionOf(const std::shared_ptr<WorkerLink>& link, const char* method,
                            std::string* worker_id) {
  auto it = link_workers_.find(link.get());
  if (it == link_workers_.end()) {
    metrics_.Fenced(method);
    return nullptr;
  }
  *worker_id = it->second;
  return &sessions_.at(it->second);
}

void Service::Attach(std::shared_ptr<WorkerLink> link, WorkerHello hello) {
  loop_.Post([this, link = std::move(link), hello = std::move(hello)] {
    const std::string& id = hello.worker_id;
    if (hello.api_level != kApiLevel) {
      link->Refuse("worker " + id + " is of version " + hello.version + " (api level " +
                   std::to_string(hello.api_level) + "), this coordinator is of " + kVersion +
                   " (api level " + std::to_string(kApiLevel) +
                   "); hint: install the same version of Weft on both");
      return;
    }
    if (id.empty() || id.size() > 128 || hello.machine.size() > 128) {
      link->Refuse("worker_id must have 1 to 128 characters, and a machine's name at most 128");
      return;
    }
    if (Status sound = CheckProfile(hello.profile); !sound.ok()) {
      link->Refuse("worker " + id + ": " + sound.message());
      return;
    }
    if (forgetting_.contains(id)) {
      link->Close();  // it dials again, and is then a new one
      return;
    }
    if (std::ssize(sessions_) >= kMostWorkers && !sessions_.contains(id)) {
      ForgetGhosts();
      if (std::ssize(sessions_) >= kMostWorkers) {
        link->Refuse("this coordinator knows " + std::to_string(sessions_.size()) +
                     " workers and takes no more; hint: weft worker forget those that are lost");
        return;
      }
    }
    Duration now = clock_.Monotonic();
    auto known = sessions_.find(id);
    bool restarted = known != sessions_.end() && !known->second.incarnation.empty() &&
                     known->second.incarnation != hello.incarnation;
    if (known != sessions_.end() && known->second.link) {
      if (restarted && now - known->second.heard_at < options_.MissingGrace()) {
        link->Refuse("another worker is attached as '" + id +
                     "'; hint: give each worker its own --data-dir and --worker-id");
        metrics_.Fenced("attach");
        return;
      }
      known->second.link->Close();
      EndProfilesOf(known->second.link);
      EndLinksOf(known->second.link);
      EndCheckOf(known->second.link);
      link_workers_.erase(known->second.link.get());
    }
    std::unique_lock lock(view_mutex_);
    Session& session = sessions_[id];
    if (session.lost || session.incarnation != hello.incarnation) session.steady_from = now;
    if (session.incarnation != hello.incarnation) session.unchecked = true;
    session.link = link;
    link_workers_[link.get()] = id;
    session.incarnation = hello.incarnation;
    session.version = hello.version;
    session.profile = hello.profile;
    session.profile.worker_id = id;
    session.profile.calibration = {};
    session.machine = hello.machine;
    session.given_network = hello.profile.network_bytes_per_second;
    session.lost = false;
    session.draining = session.logs_failed = false;
    session.log_places.clear();
    session.registered_at = session.heard_at = now;
    session.last_heartbeat_at = clock_.UnixSeconds();
    lock.unlock();
    leases_.Renew(id);
    ArmLeaseTimer();
    CountWorker(session);
    JoinLinks(session);

    std::vector<AttemptKey> adopted;
    session.stale_ranks = SeeRunning(id, session, hello.running, &adopted);
    for (const AttemptKey& key : adopted) {
      Transaction event;
      event.events.push_back(
          {key.job_id, key.epoch, clock_.UnixSeconds(), "adopted", "by worker " + id});
      store_.Commit(std::move(event), [](const Result<CommitResult>&) {});
    }
    WEFT_LOG_INFO << "worker " << id << " attached (" << hello.profile.cores << " cores, "
                  << adopted.size() << " running attempts adopted)";
    if (!Failpoint("coordinator.register.before_send").ok()) return;
    link->SendRegistered(ToSeconds(options_.lease), ToSeconds(options_.heartbeat), adopted);
    (void)Failpoint("coordinator.register.after_send");
    FindMissing(id, session, restarted, hello.running);
    std::vector<IntentRecord> intents;
    for (auto it = outbox_.lower_bound({id, "", 0, IntentKind::kStart});
         it != outbox_.end() && it->second.worker_id == id; ++it) {
      intents.push_back(it->second);
    }
    for (const IntentRecord& intent : intents) Deliver(intent);
    ScheduleSoon();
  });
}

void Service::Detach(const std::shared_ptr<WorkerLink>& link) {
  loop_.Post([this, link] {
    EndProfilesOf(link);
    EndLinksOf(link);
    EndCheckOf(link);
    auto it = link_workers_.find(link.get());
    if (it == link_workers_.end()) return;
    WEFT_LOG_INFO << "worker " << it->second << " detached; its lease runs on";
    Session& session = sessions_.at(it->second);
    {
      std::lock_guard lock(view_mutex_);
      session.link.reset();
    }
    link_workers_.erase(it);
    CountWorker(session);
  });
}

/// True when the worker runs ranks that it must not. Those in order are collected in `adopted`.
bool Service::SeeRunning(const std::string& worker_id, Session& session,
                         const std::vector<RunningAttempt>& running,
                         std::vector<AttemptKey>* adopted) {
  bool stale = false;
  for (const RunningAttempt& item : running) {
    auto it = live_.find(item.job_id);
    const PlacementRecord* placement =
        it == live_.end() ? nullptr : LivingPlacement(it->second->current, item.epoch, worker_id);
    if (placement == nullptr) {
      metrics_.Fenced(adopted != nullptr ? "attach" : "heartbeat");
      WEFT_LOG_WARNING << "worker " << worker_id << " runs attempt " << item.epoch << " of job "
                       << item.job_id << ", which is over; stopping it";
      session.link->Stop(item.job_id, item.epoch, false);
      stale = true;
      continue;
    }
    LiveJob& live = *it->second;
    if (!AreRanksOf(*live.current.attempt, *placement, item.first_rank)) continue;
    live.placements[worker_id].listed_at = clock_.Monotonic();
    live.placements[worker_id].activity = item.activity;
    live.placements[worker_id].paces = item.paces;
    live.placements[worker_id].data_wait_seconds = item.data_wait_seconds;
    const bool first = HasFirstRank(*live.current.attempt, *placement);
    if (first && !placement->ranks.empty()) SeeTimes(live, item);
    JobState state = live.current.job.state;
    const bool saves = SavesAndStops(*live.current.attempt);
    if (adopted != nullptr && (state != JobState::kRecovering || saves)) {
      adopted->push_back({item.job_id, item.epoch});
    }
    // While a change is being stored the next heartbeat says so again.
    if (placement->state == PlacementState::kDispatched && !live.busy) {
      PlacementReport started;
      started.worker_id = worker_id;
      started.epoch = item.epoch;
      started.first_rank = item.first_rank;
      Change(
          item.job_id,
          [this, started](const JobCase& current) {
            return ApplyReport(current, started, clock_.UnixSeconds());
          },
          [](const Status&) {}, true);
    }
    SeeProgress(live, item, first);
    SeePeer(live, worker_id, *placement, item);
  }
  return stale;
}

void Service::FindMissing(const std::string& worker_id, Session& session, bool restarted,
                          const std::vector<RunningAttempt>& running) {
  Duration now = clock_.Monotonic();
  for (const std::string& job_id : JobsOn(worker_id)) {
    auto it = live_.find(job_id);
    if (it == live_.end()) continue;
    LiveJob& live = *it->second;
    int64_t epoch = live.current.attempt ? live.current.attempt->epoch : 0;
    const PlacementRecord* placement = LivingPlacement(live.current, epoch, worker_id);
    if (placement == nullptr) continue;
    bool listed = std::any_of(running.begin(), running.end(), [&](const RunningAttempt& item) {
      return item.job_id == job_id && item.epoch == epoch &&
             AreRanksOf(*live.current.attempt, *placement, item.first_rank);
    });
    if (listed) continue;
    bool never = placement->state == PlacementState::kDispatched;
    const PlacementTrack& track = live.placements[worker_id];
    Duration since = std::max(
        {track.listed_at.value_or(Duration(0)), track.expected_from, session.registered_at});
    Duration grace = never ? options_.StartGrace() : options_.MissingGrace();
    if (restarted && !never) {
      LoseShare(job_id, epoch, worker_id, "the worker was restarted without its ranks",
                Reason::kWorkerLost);
    } else if (now - since > grace) {
      LoseShare(job_id, epoch, worker_id,
                never ? "the ranks were never started" : "the worker has no such ranks any more",
                Reason::kRankDied);
    }
  }
}

void Service::LoseShare(const std::string& job_id, int64_t epoch, const std::string& worker_id,
                        const std::string& why, Reason reason) {
  PlacementReport lost{worker_id, epoch, PlacementEvent::kLost, reason, why, ""};
  // By the time that it is stored others may have come.
  const PlacementRecord* placement = LivingPlacement(live_.at(job_id)->current, epoch, worker_id);
  if (placement != nullptr && !placement->ranks.empty()) {
    lost.first_rank = placement->ranks.front();
  }
  Change(
      job_id,
      [this, lost](const JobCase& current) {
        return ApplyReport(current, lost, clock_.UnixSeconds());
      },
      [](const Status&) {}, true);
}

void Service::Heartbeat(const std::shared_ptr<WorkerLink>& link, int64_t sequence,
                        std::vector<RunningAttempt> running, bool draining) {
  loop_.Post([this, link, sequence, running = std::move(running), draining] {
    std::string id;
    Session* session = SessionOf(link, "heartbeat", &id);
    if (session == nullptr) return;
    bool was_lost = session->lost;
    {
      std::lock_guard lock(view_mutex_);
      session->heard_at = clock_.Monotonic();
      session->last_heartbeat_at = clock_.UnixSeconds();
      if (session->lost) session->steady_from = session->heard_at;
      session->lost = false;
    }
    leases_.Renew(id);
    const bool was_draining = std::exchange(session->draining, draining);
    bool was_stale = session->stale_ranks;
    session->stale_ranks = SeeRunning(id, *session, running, nullptr);
    if (draining || MustLeave(id)) DrainJobsOn(id);
    for (const RunningAttempt& item : running) {
      CheckHang(item.job_id);
      CheckStraggler(item.job_id);
    }
    FindMissing(id, *session, false, running);
    // What it reported can be seen now.
    if (Failpoint("coordinator.heartbeat.before_ack").ok()) link->AckHeartbeat(sequence);
    (void)Failpoint("coordinator.heartbeat.after_ack");
    if (was_lost) CountWorker(*session);
    if (was_lost || was_stale || (was_draining && !draining)) ScheduleSoon();
  });
}

void Service::BreakDevices(const std::shared_ptr<WorkerLink>& link,
                           std::map<int64_t, std::string> broken) {
  loop_.Post([this, link, broken = std::move(broken)] {
    std::string id;
    Session* session = SessionOf(link, "heartbeat", &id);
    if (session == nullptr) return;
    std::lock_guard lock(view_mutex_);
    for (DeviceSpec& device : session->profile.devices) {
      auto it = broken.find(device.index);
      if (it == broken.end() || !device.unusable.empty()) continue;
      device.unusable = it->second;
      WEFT_LOG_WARNING << "GPU " << device.index << " of worker " << id
                       << " is out of use: " << it->second;
    }
  });
}

}  // namespace weft::coordinator
