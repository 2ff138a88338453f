// What the scheduler sees: the machines, and the jobs that hold them or wait for them.
#include <algorithm>

#include "common/spec/phases.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr int64_t kUnknownMemory = int64_t{1} << 50;

/// The plan with those ranks alone that hold something: those that are alive, or all of them.
Plan HeldByRanks(const AttemptRecord& attempt, bool all) {
  Plan held = attempt.plan;
  held.rank_workers.clear();
  held.rank_devices.clear();
  for (const PlacementRecord& placement : attempt.placements) {
    if (IsGone(placement.state) && !all) continue;
    for (int64_t rank : placement.ranks) {
      held.rank_workers.push_back(placement.worker_id);
      if (rank < std::ssize(attempt.plan.rank_devices)) {
        held.rank_devices.push_back(attempt.plan.rank_devices[static_cast<size_t>(rank)]);
      }
    }
  }
  return held;
}

}  // namespace

SchedulerSnapshot Service::TakeActive(const std::string& apart) {
  SchedulerSnapshot snapshot;
  snapshot.now = clock_.UnixSeconds();
  snapshot.rules = options_.scheduler;
  snapshot.rules.scale_up = options_.scale_up;
  snapshot.rules.spare_workers = options_.spare_workers;
  snapshot.rules.prediction_error = prediction_error_;
  {
    std::lock_guard lock(view_mutex_);
    snapshot.queues = queues_.queues;
  }
  AddMachines(snapshot);
  AddLinks(snapshot);
  if (snapshot.cluster.workers != scheduled_cluster_.workers) {
    scheduled_cluster_ = snapshot.cluster;
    ++cluster_number_;
  }
  held_plans_.clear();
  std::set<std::string> counted;
  for (const auto& [worker_id, jobs] : placed_) {
    for (const std::string& job_id : jobs) {
      auto it = live_.find(job_id);
      if (it == live_.end() || job_id == apart || !counted.insert(job_id).second) continue;
      const AttemptRecord& attempt = *it->second->current.attempt;
      // Nobody takes the place of a job that stops to go on with more.
      held_plans_.push_back(HeldByRanks(attempt, attempt.reason == Reason::kReplanned));
      std::vector<std::string>& workers = held_plans_.back().rank_workers;
      workers.insert(workers.end(), it->second->joins_on.begin(), it->second->joins_on.end());
      TakeCapacity(held_plans_.back(), snapshot.free);
      snapshot.active.push_back(AsActive(job_id, *it->second, attempt.plan));
      if (snapshot.active.back().stopping) snapshot.active.back().job.plan = &held_plans_.back();
    }
  }
  return snapshot;
}

void Service::AddReserved(const std::string& job_id, const LiveJob& live,
                          SchedulerSnapshot& snapshot) const {
  TakeCapacity(*live.reserved, snapshot.free);
  snapshot.active.push_back(AsActive(job_id, live, *live.reserved));
  snapshot.active.back().may_stop = false;
}

bool Service::HasATurn(const std::string& job_id, const LiveJob& live) const {
  return !live.busy && !live.reserved && !held_.contains(job_id) && MayStart(live);
}

SchedulerSnapshot Service::TakeSnapshot(const std::string& apart) {
  SchedulerSnapshot snapshot = TakeActive(apart);
  snapshot.held = HoldBack();
  held_.clear();
  for (const HeldJob& job : snapshot.held) held_.insert(job.id);
  snapshot.queue.reserve(queue_.size());
  for (const auto& [ordinal, queued] : queue_) {
    const LiveJob& live = *queued;
    const std::string& job_id = live.current.job.id;
    if (live.reserved) AddReserved(job_id, live, snapshot);
    if (HasATurn(job_id, live)) snapshot.queue.push_back(AsQueued(job_id, live));
  }
  return snapshot;
}

void Service::AddMachines(SchedulerSnapshot& snapshot) const {
  const Duration now = clock_.Monotonic();
  for (const auto& [id, session] : sessions_) {
    if (!session.link || session.lost || session.draining || !leases_.IsValid(id) ||
        SchedulingOf(id) != WorkerScheduling::kSchedulable) {
      continue;
    }
    snapshot.cluster.workers.push_back(Calibrated(session.profile));
    WorkerProfile& profile = snapshot.cluster.workers.back();
    if (profile.memory_limit_bytes <= 0) {
      profile.memory_limit_bytes = profile.memory_bytes > 0 ? profile.memory_bytes : kUnknownMemory;
    }
    if (ToSeconds(now - session.steady_from) < options_.scale_up.after_seconds) {
      snapshot.new_workers.insert(id);
    }
    // A measurement of its network takes seconds, and ranks would spoil it.
    if (session.stale_ranks || IsMeasured(session.machine) || !MayTakeRanks(id, session)) continue;
    FreeCapacity& free = snapshot.free[id];
    free = {profile.cores, profile.memory_limit_bytes};
    for (const DeviceSpec& device : profile.devices) {
      if (device.unusable.empty()) free.devices.insert(device.index);
    }
  }
}

const Infeasible* Service::InfeasibleNow(const LiveJob& live) const {
  const bool ever_planned = LastOfPhase(live.current) != nullptr || live.next_plan;
  if (ever_planned || !live.infeasible || live.infeasible->cluster != cluster_number_) {
    return nullptr;
  }
  return &*live.infeasible;
}

QueuedJob Service::AsQueued(const std::string& job_id, const LiveJob& live) const {
  const JobRecord& job = live.current.job;
  const AttemptRecord* last = LastOfPhase(live.current);
  QueuedJob queued;
  queued.id = job_id;
  queued.spec = &live.Phase();
  queued.last_plan = last ? &last->plan : nullptr;
  queued.out_of_memory = last && last->reason == Reason::kOutOfMemory;
  queued.ran_out_of_memory = live.history.ran_out_of_memory;
  queued.replanned = live.history.replanned;
  queued.next_plan = live.next_plan ? &*live.next_plan : nullptr;
  queued.planned_long = live.planning_since &&
                        clock_.Monotonic() - *live.planning_since >= options_.planning.patience;
  if (const Infeasible* infeasible = InfeasibleNow(live)) {
    queued.infeasible_reason = &infeasible->why;
  }
  const bool ever_planned = last || live.next_plan;
  if (!ever_planned && live.planning_pause && live.planning_pause->cluster == cluster_number_ &&
      clock_.Monotonic() < live.planning_pause->until) {
    queued.given_up_reason = &live.planning_pause->why;
  }
  queued.queue = job.queue;
  queued.priority = job.priority;
  queued.submitted_at = job.submitted_at;
  queued.steps_left = StepsBefore(job.spec, live.current.phase + 1) - live.progress.step;
  queued.step_seconds = last ? live.steps.StepSeconds() : 0;
  queued.preemptions = Preemptions(live.current);
  queued.promised = live.promised;
  queued.recovers = last && last->ended_at && HasFailed(*last);
  if (live.size && live.size->first == cluster_number_) queued.size = live.size->second;
  return queued;
}

ActiveJob Service::AsActive(const std::string& job_id, const LiveJob& live,
                            const Plan& plan) const {
  const JobRecord& record = live.current.job;
  ActiveJob active;
  active.id = job_id;
  active.job = AsRunning(live, plan);
  active.queue = record.queue;
  active.priority = record.priority;
  active.preemptible = record.spec.scheduling.preemptible;
  active.submitted_at = record.submitted_at;
  const int64_t unsaved = live.progress.step - live.progress.checkpoint_step.value_or(0);
  active.unsaved_seconds =
      static_cast<double>(std::max<int64_t>(unsaved, 0)) * active.job.step_seconds;
  active.preemptions = Preemptions(live.current);
  active.may_stop = record.state == JobState::kRunning && !live.busy && !IsRecorded(job_id) &&
                    HasAllWorkers(plan);
  active.stopping =
      record.state != JobState::kStarting && record.state != JobState::kRunning && !live.reserved;
  if (active.stopping && record.reason == Reason::kReplanned && live.next_plan) {
    active.next_plan = &*live.next_plan;
  }
  return active;
}

bool Service::IsRecorded(const std::string& job_id) const {
  return std::any_of(profiles_.begin(), profiles_.end(),
                     [&](const auto& call) { return call.second.job_id == job_id; });
}

}  // namespace weft::coordinator
