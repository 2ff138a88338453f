#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/spec/phases.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/scheduler/spares.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr std::chrono::nanoseconds kLongestPause = std::chrono::seconds(10);

}  // namespace

void Service::LookAtPlansLater() {
  const double after = options_.scale_up.after_seconds;
  const auto quarter = after > 0 ? FromSeconds(after / 4) : kLongestPause;
  loop_.PostAfter(std::clamp(quarter, std::min(options_.heartbeat, kLongestPause), kLongestPause),
                  [this] {
                    LookAtPlans();
                    LookAtPlansLater();
                  });
}

void Service::LookAtPlans() {
  if (settling_ || schedule_pending_ || AwaitsChecks()) return;
  // What is free belongs to those that wait, and to those whose ranks are about to be gone.
  bool free = !queue_waits_;
  std::map<int64_t, std::string> running;  // the first one submitted comes first
  for (const auto& [id, live] : live_) {
    const JobState state = live->current.job.state;
    if (state == JobState::kRecovering) free = false;
    if (state == JobState::kRunning) running[live->current.job.ordinal] = id;
  }
  for (const auto& entry : running) {
    const std::string& id = entry.second;
    LiveJob& live = *live_.at(id);
    const Plan& plan = live.current.attempt->plan;
    if (live.busy || IsRecorded(id) || !HasAllWorkers(plan)) continue;
    const RunningJob job = AsRunning(live, plan);
    if (live.before) {
      if (auto back = FindScaleBack(job, *live.before, options_.scale_up)) {
        return Replan(id, *back, [](LiveJob& stopping) {
          stopping.before.reset();
          stopping.went_back = true;
        });
      }
    }
    if (!free) continue;
    if (auto trial = NextTrial(id, live, job)) return Replan(id, *trial, [](LiveJob&) {});
  }
  ScheduleSoon();  // for jobs that grow, and so that predicted starts stay true
}

bool Service::HasAllWorkers(const Plan& plan) const {
  return std::all_of(plan.rank_workers.begin(), plan.rank_workers.end(),
                     [this](const std::string& id) {
                       auto it = sessions_.find(id);
                       return it != sessions_.end() && it->second.link && !it->second.lost &&
                              !it->second.draining && leases_.IsValid(id) &&
                              SchedulingOf(id) == WorkerScheduling::kSchedulable;
                     });
}

RunningJob Service::AsRunning(const LiveJob& live, const Plan& plan) const {
  RunningJob job;
  job.spec = &live.Phase();
  job.plan = &plan;
  job.history = live.history;
  if (live.current.attempt && !live.current.attempt->ended_at) {
    job.attempt_seconds = clock_.UnixSeconds() - live.current.attempt->started_at;
  }
  job.steps_left = StepsBefore(live.current.job.spec, live.current.phase + 1) - live.progress.step;
  job.step_seconds = live.steps.StepSeconds();
  job.median_step_seconds = live.steps.MedianSeconds();
  job.start_seconds = live.start_seconds;
  job.saved = live.progress.checkpoint_step.has_value();
  job.went_back = live.went_back;
  job.no_peers_on = NoPeersOn(live);
  if (job.no_peers_on) job.joining = std::ssize(JoiningRanks(*live.current.attempt));
  return job;
}

std::optional<PlanChange> Service::NextTrial(const std::string& job_id, LiveJob& live,
                                             const RunningJob& job) {
  if (job.spec->resources.try_plans <= 1) return std::nullopt;
  SchedulerSnapshot snapshot = TakeSnapshot(job_id);
  const FreeMap free =
      WithoutSpares(snapshot.cluster, std::move(snapshot.free), options_.spare_workers);
  return FindTrial(job, live.tried, snapshot.cluster, free, options_.scale_up.restart,
                   PlannedBefore(job_id, live));
}

PlanFunction Service::PlannedBefore(const std::string& job_id, LiveJob& live) {
  return [known = Known(job_id), &live](const JobSpec& spec, const ClusterProfile& part) {
    const int64_t memory = spec.resources.memory_per_rank_bytes;
    if (live.planned && live.planned->memory_per_rank_bytes == memory &&
        live.planned->cluster.workers == part.workers) {
      return live.planned->report;
    }
    Result<PlanReport> report = known(spec, part);
    if (report.ok() || !HasNoAnswerYet(report.status())) {
      live.planned = Planned{memory, part, report};
    }
    return report;
  };
}

void Service::Replan(const std::string& job_id, const PlanChange& better,
                     std::function<void(LiveJob&)> then) {
  WEFT_LOG_INFO << "job " << job_id << " is stopped to go on by another plan: " << better.why;
  Change(
      job_id,
      [this, epoch = live_.at(job_id)->current.attempt->epoch,
       why = better.why](const JobCase& current) {
        return ReplanAttempt(current, epoch, why, clock_.UnixSeconds());
      },
      [this, job_id, plan = better.plan, then = std::move(then)](const Status& status) {
        auto it = live_.find(job_id);
        if (!status.ok() || it == live_.end()) return;
        LiveJob& stopping = *it->second;
        if (stopping.current.attempt->reason != Reason::kReplanned) return;
        stopping.next_plan = plan;
        then(stopping);
      },
      false);
}

}  // namespace weft::coordinator
