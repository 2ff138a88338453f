#include <algorithm>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/phases.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr int64_t kUnknownMemory = int64_t{1} << 50;

/// Passes over a long queue take a fifth of the loop's time at most, and come once a second at
/// least.
constexpr int kRestAfterPass = 4;
constexpr std::chrono::seconds kLongestRest(1);

double SecondsSince(const Clock& clock, std::chrono::nanoseconds begin) {
  return std::chrono::duration<double>(clock.Monotonic() - begin).count();
}

}  // namespace

void Service::ScheduleSoon() {
  if (schedule_pending_ || settling_) return;
  schedule_pending_ = true;
  auto pass = [this] {
    schedule_pending_ = false;
    const Duration begin = clock_.Monotonic();
    RunSchedule();
    const Duration end = clock_.Monotonic();
    next_pass_ = end + std::min<Duration>(kRestAfterPass * (end - begin), kLongestRest);
  };
  const Duration rest = next_pass_ - clock_.Monotonic();
  if (rest > Duration(0)) {
    loop_.PostAfter(rest, pass);
  } else {
    loop_.Post(pass);
  }
}

SchedulerSnapshot Service::TakeSnapshot(const std::string& apart) {
  SchedulerSnapshot snapshot;
  for (const auto& [id, session] : sessions_) {
    if (!session.link || session.lost || session.draining || !leases_.IsValid(id)) continue;
    if (!session.quarantined.empty()) continue;
    snapshot.cluster.workers.push_back(Calibrated(session.profile));
    WorkerProfile& profile = snapshot.cluster.workers.back();
    if (profile.memory_limit_bytes <= 0) {
      profile.memory_limit_bytes = profile.memory_bytes > 0 ? profile.memory_bytes : kUnknownMemory;
    }
    // A measurement of its network takes seconds, and ranks would spoil it.
    if (!session.stale_ranks && !IsMeasured(session.machine) && MayTakeRanks(id, session)) {
      FreeCapacity& free = snapshot.free[id];
      free = {profile.cores, profile.memory_limit_bytes};
      for (const DeviceSpec& device : profile.devices) {
        if (device.unusable.empty()) free.devices.insert(device.index);
      }
    }
  }
  if (snapshot.cluster.workers != scheduled_cluster_.workers) {
    scheduled_cluster_ = snapshot.cluster;
    ++cluster_number_;
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
      for (const PlacementRecord& placement : attempt.placements) {
        if (IsGone(placement.state) && !keeps) continue;
        for (int64_t rank : placement.ranks) {
          held.rank_workers.push_back(placement.worker_id);
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
    const AttemptRecord* last = LastOfPhase(live.current);
    snapshot.queue.push_back({job_id, &live.phase, last ? &last->plan : nullptr,
                              last && last->reason == Reason::kOutOfMemory,
                              live.history.ran_out_of_memory, live.history.replanned,
                              live.next_plan ? &*live.next_plan : nullptr});
    QueuedJob& queued = snapshot.queue.back();
    queued.planned_long = live.planning_since &&
                          clock_.Monotonic() - *live.planning_since >= options_.planning.patience;
    const bool known = live.infeasible && live.infeasible->cluster == cluster_number_;
    if (known && !last && !live.next_plan) queued.infeasible_reason = &live.infeasible->why;
  }
  return snapshot;
}

void Service::RunSchedule() {
  queue_waits_ = false;
  CheckMachines();
  if (AwaitsChecks()) return;
  StartQueued();
  // Jobs come first.
  MeasureLinks();
}

void Service::StartQueued() {
  if (queue_.empty()) {
    metrics_.SetPending(Reason::kWaitingForWorkers, 0);
    metrics_.SetPending(Reason::kWaitingForCapacity, 0);
    metrics_.SetPending(Reason::kPlanning, 0);
    plans_.BeginPass();
    plans_.EndPass();
    return;
  }
  Duration begin = clock_.Monotonic();
  plans_.BeginPass();
  SchedulerSnapshot snapshot = TakeSnapshot();
  const std::vector<StartDecision> recovering = StartRecovering(snapshot);
  LeaveSpares(snapshot);
  const SchedulerDecisions decisions = Schedule(snapshot, Known(""));
  plans_.EndPass();
  metrics_.ScheduleCycle(SecondsSince(clock_, begin));
  Carry(recovering);
  Carry(decisions.starts);
  ShowWaits(decisions.waits);
  if (!recovering.empty() || !decisions.starts.empty()) queue_waits_ = true;
}

void Service::Carry(const std::vector<StartDecision>& starts) {
  for (const StartDecision& start : starts) {
    live_.at(start.job_id)->reserved = start.plan;
    live_.at(start.job_id)->planning_since.reset();
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
}

void Service::ShowWaits(const std::vector<WaitDecision>& waits) {
  int64_t for_workers = 0, for_capacity = 0, for_plans = 0;
  bool may_start_soon = false;
  for (const WaitDecision& wait : waits) {
    LiveJob& live = *live_.at(wait.job_id);
    if (wait.infeasible) live.infeasible = Infeasible{cluster_number_, wait.message};
    if (wait.reason != Reason::kPlanning) {
      live.planning_since.reset();
    } else if (!live.planning_since) {
      live.planning_since = clock_.Monotonic();
      loop_.PostAfter(options_.planning.patience, [this] { ScheduleSoon(); });
    }
    if (wait.reason == Reason::kPlanning) {
      ++for_plans;
      may_start_soon |= clock_.Monotonic() - *live.planning_since < options_.planning.patience;
    } else {
      ++(wait.reason == Reason::kWaitingForWorkers ? for_workers : for_capacity);
    }
    bool changed = false;
    SetOverlay(wait.job_id, [&](Overlay& overlay) {
      changed = overlay.reason != wait.reason || overlay.message != wait.message;
      if (!changed) return;
      overlay.reason = wait.reason;
      overlay.message = wait.message;
    });
    if (changed) job_changes_.Notify(wait.job_id);
  }
  metrics_.SetPending(Reason::kWaitingForWorkers, for_workers);
  metrics_.SetPending(Reason::kWaitingForCapacity, for_capacity);
  metrics_.SetPending(Reason::kPlanning, for_plans);
  queue_waits_ = for_capacity > 0 || may_start_soon;
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
    order.spec = JobThrough(current.job.spec, current.phase);
    order.plan = current.attempt->plan;
    order.run_dir = current.job.run_dir;
    order.mean_seconds_between_failures = MeanSecondsBetweenFailures(current.attempt->plan);
    for (const PlacementRecord& placement : current.attempt->placements) {
      if (placement.worker_id == intent.worker_id) order.ranks = placement.ranks;
    }
    link.Start(order);
  }
  (void)Failpoint("coordinator.dispatch.after_send");
}

}  // namespace weft::coordinator
