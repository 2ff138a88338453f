#include "common/failpoint.h"
#include "common/log.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr int64_t kUnknownMemory = int64_t{1} << 50;

/// Jobs looked at in one pass; those behind them wait for their turn.
constexpr size_t kLongestLook = 1000;

double SecondsSince(const Clock& clock, std::chrono::nanoseconds begin) {
  return std::chrono::duration<double>(clock.Monotonic() - begin).count();
}

}  // namespace

void Service::ScheduleSoon() {
  if (schedule_pending_ || settling_) return;
  schedule_pending_ = true;
  loop_.Post([this] {
    schedule_pending_ = false;
    RunSchedule();
  });
}

SchedulerSnapshot Service::TakeSnapshot(const std::string& apart) {
  SchedulerSnapshot snapshot;
  for (const auto& [id, session] : sessions_) {
    if (!session.link || session.lost || session.draining || !leases_.IsValid(id)) continue;
    snapshot.cluster.workers.push_back(Calibrated(session.profile));
    WorkerProfile& profile = snapshot.cluster.workers.back();
    if (profile.memory_limit_bytes <= 0) {
      profile.memory_limit_bytes = profile.memory_bytes > 0 ? profile.memory_bytes : kUnknownMemory;
    }
    if (!session.stale_ranks) {
      FreeCapacity& free = snapshot.free[id];
      free = {profile.cores, profile.memory_limit_bytes};
      for (const DeviceSpec& device : profile.devices) {
        if (device.unusable.empty()) free.devices.insert(device.index);
      }
    }
  }
  std::set<std::string> counted;
  for (const auto& [worker_id, jobs] : placed_) {
    for (const std::string& job_id : jobs) {
      auto it = live_.find(job_id);
      if (it == live_.end() || job_id == apart || !counted.insert(job_id).second) continue;
      const AttemptRecord& attempt = *it->second->current.attempt;
      // Nobody takes the place of a job that stops to go on with more.
      const bool keeps = attempt.reason == Reason::kReplanned;
      Plan held = attempt.plan;
      held.rank_workers.clear();
      held.rank_devices.clear();
      for (const ShareRecord& share : attempt.shares) {
        if (IsGone(share.state) && !keeps) continue;
        for (int64_t rank : share.ranks) {
          held.rank_workers.push_back(share.worker_id);
          if (rank < std::ssize(attempt.plan.rank_devices)) {
            held.rank_devices.push_back(attempt.plan.rank_devices[static_cast<size_t>(rank)]);
          }
        }
      }
      TakeCapacity(held, snapshot.free);
    }
  }
  for (const auto& [ordinal, job_id] : queue_) {
    const LiveJob& live = *live_.at(job_id);
    if (live.reserved) TakeCapacity(*live.reserved, snapshot.free);
    if (live.busy || live.reserved || !MayStart(live)) continue;
    if (snapshot.queue.size() >= kLongestLook) break;
    const std::optional<AttemptRecord>& last = live.current.attempt;
    snapshot.queue.push_back({job_id, &live.current.job.spec, last ? &last->plan : nullptr,
                              last && last->reason == Reason::kOutOfMemory,
                              live.history.ran_out_of_memory, live.history.replanned,
                              live.next_plan ? &*live.next_plan : nullptr});
  }
  return snapshot;
}

Result<PlanReport> Service::TimedPlan(const JobSpec& spec, const ClusterProfile& cluster) {
  Duration begin = clock_.Monotonic();
  Result<PlanReport> report = plan_(spec, cluster);
  double seconds = SecondsSince(clock_, begin);
  metrics_.Planned(report.ok(), seconds, report.ok() ? report->candidates_considered : 0);
  if (report.ok()) report->planning_seconds = seconds;
  return report;
}

void Service::RunSchedule() {
  queue_waits_ = false;
  if (queue_.empty()) {
    metrics_.SetPending(Reason::kWaitingForWorkers, 0);
    metrics_.SetPending(Reason::kWaitingForCapacity, 0);
    return;
  }
  Duration begin = clock_.Monotonic();
  SchedulerDecisions decisions =
      Schedule(TakeSnapshot(), [this](const JobSpec& spec, const ClusterProfile& cluster) {
        return TimedPlan(spec, cluster);
      });
  metrics_.ScheduleCycle(SecondsSince(clock_, begin));
  for (const StartDecision& start : decisions.starts) {
    live_.at(start.job_id)->reserved = start.plan;
    Change(
        start.job_id,
        [this, plan = start.plan](const JobCase& current) {
          return DispatchAttempt(current, plan, clock_.UnixSeconds());
        },
        [this, id = start.job_id](const Status& status) {
          if (auto it = live_.find(id); it != live_.end()) it->second->reserved.reset();
          if (!status.ok() && status.code() != StatusCode::kConflict) {
            loop_.PostAfter(std::chrono::seconds(1), [this] { ScheduleSoon(); });
          }
        },
        false);
  }
  int64_t for_workers = 0;
  auto for_capacity = static_cast<int64_t>(queue_.size() - decisions.waits.size()) -
                      static_cast<int64_t>(decisions.starts.size());
  for (const WaitDecision& wait : decisions.waits) {
    ++(wait.reason == Reason::kWaitingForWorkers ? for_workers : for_capacity);
    bool changed = false;
    SetOverlay(wait.job_id, [&](Overlay& overlay) {
      changed = overlay.reason != wait.reason || overlay.message != wait.message;
      overlay.reason = wait.reason;
      overlay.message = wait.message;
    });
    if (changed) job_changes_.Notify(wait.job_id);
  }
  metrics_.SetPending(Reason::kWaitingForWorkers, for_workers);
  metrics_.SetPending(Reason::kWaitingForCapacity, for_capacity);
  queue_waits_ = for_capacity > 0 || !decisions.starts.empty();
}

void Service::Deliver(const IntentRecord& intent) {
  auto session = sessions_.find(intent.worker_id);
  if (session == sessions_.end() || !session->second.link) return;
  WorkerLink& link = *session->second.link;
  if (!Failpoint("coordinator.dispatch.before_send").ok()) return;
  if (intent.kind == IntentKind::kStop) {
    link.Stop(intent.job_id, intent.epoch, intent.graceful);
  } else {
    auto it = live_.find(intent.job_id);
    if (it == live_.end()) return;
    const JobCase& current = it->second->current;
    if (!current.attempt || current.attempt->epoch != intent.epoch) return;
    StartOrder order;
    order.job_id = intent.job_id;
    order.epoch = intent.epoch;
    order.spec = current.job.spec;
    order.plan = current.attempt->plan;
    order.run_dir = current.job.run_dir;
    for (const ShareRecord& share : current.attempt->shares) {
      if (share.worker_id == intent.worker_id) order.ranks = share.ranks;
    }
    link.Start(order);
  }
  (void)Failpoint("coordinator.dispatch.after_send");
}

}  // namespace weft::coordinator
