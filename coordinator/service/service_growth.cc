#include <algorithm>

#include "common/log.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr std::chrono::nanoseconds kLongestPause = std::chrono::seconds(10);

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void Service::LookAtGrowthLater() {
  const double after = options_.growth.after_seconds;
  if (after <= 0) return;
  const auto quarter =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(after / 4));
  loop_.PostAfter(std::clamp(quarter, std::min(options_.heartbeat, kLongestPause), kLongestPause),
                  [this] {
                    LookAtGrowth();
                    LookAtGrowthLater();
                  });
}

void Service::LookAtGrowth() {
  // What is free belongs to those that wait, and to those whose ranks are about to be gone.
  if (settling_ || schedule_pending_ || queue_waits_) return;
  std::map<int64_t, std::string> running;  // the first one submitted comes first
  for (const auto& [id, live] : live_) {
    const JobState state = live->current.job.state;
    if (state == JobState::kRecovering) return;
    if (state == JobState::kRunning) running[live->current.job.ordinal] = id;
  }
  for (const auto& [ordinal, id] : running) {
    if (Grow(id)) return;
  }
}

bool Service::HasAllWorkers(const Plan& plan) const {
  return std::all_of(plan.rank_workers.begin(), plan.rank_workers.end(),
                     [this](const std::string& id) {
                       auto it = sessions_.find(id);
                       return it != sessions_.end() && it->second.link && !it->second.lost &&
                              !it->second.draining && leases_.IsValid(id);
                     });
}

bool Service::Grow(const std::string& job_id) {
  LiveJob& live = *live_.at(job_id);
  const bool recorded = std::any_of(profiles_.begin(), profiles_.end(),
                                    [&](const auto& call) { return call.second.job_id == job_id; });
  if (live.busy || recorded || !HasAllWorkers(live.current.attempt->plan)) return false;
  const AttemptRecord& attempt = *live.current.attempt;
  const Duration now = clock_.Monotonic();
  RunningJob job;
  job.spec = &live.current.job.spec;
  job.plan = &attempt.plan;
  job.history = live.history;
  job.attempt_seconds = clock_.UnixSeconds() - attempt.started_at;
  job.steps_left = job.spec->train.steps - live.progress.step;
  job.step_seconds = live.steps.StepSeconds();
  job.start_seconds = live.start_seconds;
  job.saved = live.progress.checkpoint_step.has_value();
  if (!MayGrow(job, options_.growth)) return false;

  SchedulerSnapshot snapshot = TakeSnapshot(job_id);
  const auto& held = attempt.plan.rank_workers;
  std::erase_if(snapshot.cluster.workers, [&](const WorkerProfile& worker) {
    const bool own = std::find(held.begin(), held.end(), worker.worker_id) != held.end();
    const double steady = Seconds(now - sessions_.at(worker.worker_id).steady_from);
    return !own && steady < options_.growth.after_seconds;
  });
  // While the machines are the same the answer of the planner is, too.
  auto plan = [&](const JobSpec& spec, const ClusterProfile& part) {
    if (!live.planned || live.planned->first.workers != part.workers) {
      live.planned.emplace(part, TimedPlan(spec, part));
    }
    return live.planned->second;
  };
  std::optional<Growth> growth =
      FindGrowth(job, snapshot.cluster, snapshot.free, options_.growth, plan);
  if (!growth) return false;
  WEFT_LOG_INFO << "job " << job_id << " is stopped to go on with more: " << growth->why;
  Change(
      job_id,
      [this, epoch = attempt.epoch, growth = *growth](const JobCase& current) {
        return ReplanAttempt(current, epoch, growth.why, clock_.UnixSeconds());
      },
      [this, job_id, growth = *growth](const Status& status) {
        auto it = live_.find(job_id);
        if (!status.ok() || it == live_.end()) return;
        LiveJob& stopping = *it->second;
        if (stopping.current.attempt->reason == Reason::kReplanned) {
          stopping.next_plan = growth.plan;
        }
      },
      false);
  return true;
}

}  // namespace weft::coordinator
