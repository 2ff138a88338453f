#include <algorithm>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/phases.h"
#include "common/spec/planned_job.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Passes over a long queue take a fifth of the loop's time at most, and come once a second at
/// least.
constexpr std::chrono::seconds kLongestRest(1);

/// A job that starts waits no longer for the prediction of its steps where it starts.
constexpr std::chrono::milliseconds kPredictionBudget(200);

}  // namespace

void Service::ScheduleSoon() {
  if (schedule_pending_ || settling_ || !unloaded_.empty()) return;
  schedule_pending_ = true;
  auto pass = [this] {
    schedule_pending_ = false;
    const Duration begin = clock_.Monotonic();
    RunSchedule();
    const Duration end = clock_.Monotonic();
    next_pass_ = end + std::min<Duration>(options_.rest_after_pass * (end - begin), kLongestRest);
  };
  const Duration rest = next_pass_ - clock_.Monotonic();
  if (rest > Duration(0)) {
    loop_.PostAfter(rest, pass);
  } else {
    loop_.Post(pass);
  }
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
  Duration begin = clock_.Monotonic();
  plans_.BeginPass();
  SchedulerSnapshot snapshot = TakeSnapshot();
  SchedulerDecisions decisions;
  PlanAnswers answers;
  if (!live_.empty()) {
    decisions =
        Schedule(snapshot, decision_log_.enabled() ? Recording(Known(""), answers) : Known(""));
    decision_log_.Record(snapshot, answers, decisions);
  }
  plans_.EndPass();
  metrics_.ScheduleCycle(SecondsSince(clock_, begin), clock_.UnixSeconds());
  for (const auto& [job_id, size] : decisions.sizes) {
    live_.at(job_id)->size = {cluster_number_, size};
  }
  for (const StartDecision& start : decisions.starts) Dispatch(start);
  for (const PreemptDecision& preemption : decisions.preemptions) Preempt(preemption);
  for (const ResizeDecision& resize : decisions.resizes) Resize(resize);
  for (const JoinDecision& join : decisions.joins) Join(join);
  ShowWaits(decisions.waits);
  CountQueues();
  if (!decisions.starts.empty()) queue_waits_ = true;
}

void Service::Dispatch(const StartDecision& start) {
  live_.at(start.job_id)->reserved = start.plan;
  live_.at(start.job_id)->planning_since.reset();
  if (std::optional<ClusterProfile> place = PlaceByItsLinks(start.plan)) {
    PredictOn(start, *std::move(place));
  } else {
    CommitStart(start);
  }
}

void Service::PredictOn(const StartDecision& start, ClusterProfile place) {
  JobSpec spec = JobAsPlanned(live_.at(start.job_id)->Phase(), start.plan);
  spec.resources.device = start.plan.device;
  spec.resources.min_ranks = spec.resources.max_ranks = 0;  // bounds of what is decided now
  auto work = [this, start, spec = std::move(spec),
               place = std::move(place)](const PlanTicket& ticket) {
    StartDecision predicted = start;
    const std::stop_token stop = ticket.stop();
    const PlanFunction find = [&](const JobSpec& job, const ClusterProfile& machines) {
      return TimedPlan(job, machines, stop);
    };
    if (!stop.stop_requested()) {
      if (const Result<Plan> there = BestPlan(spec, place, find); there.ok()) {
        Prediction& prediction = predicted.plan.prediction;
        prediction.step_seconds = there->prediction.step_seconds;
        prediction.tokens_per_second = there->prediction.tokens_per_second;
        prediction.time = there->prediction.time;
      }
    }
    loop_.Post([this, predicted = std::move(predicted)] { CommitStart(predicted); });
  };
  const auto ticket = queue_pool_.Add(kPredictionBudget, std::move(work));
  if (ticket == nullptr) return CommitStart(start);  // shutting down
  loop_.PostAfter(kPredictionBudget, [this, ticket] { queue_pool_.Cancel(ticket); });
}

void Service::CommitStart(const StartDecision& start) {
  const auto live = live_.find(start.job_id);
  if (live == live_.end() || !live->second->reserved) return;  // it was cancelled meanwhile
  live->second->reserved = start.plan;
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

void Service::Preempt(const PreemptDecision& preemption) {
  live_.at(preemption.for_job)->promised = true;
  Change(
      preemption.job_id,
      [this, epoch = live_.at(preemption.job_id)->current.attempt->epoch,
       why = "stopped at a checkpoint " + preemption.why](const JobCase& current) {
        return PreemptAttempt(current, epoch, why, clock_.UnixSeconds());
      },
      [](const Status&) {}, false);
}

void Service::Resize(const ResizeDecision& resize) {
  const LiveJob& live = *live_.at(resize.job_id);
  HeapOptional<BeforeScaleUp> before;
  if (resize.for_job.empty()) {
    before = BeforeScaleUp{live.current.attempt->plan, live.steps.MedianSeconds()};
  } else {
    live_.at(resize.for_job)->promised = true;
    if (ShrinkByPeers(resize)) return;
  }
  Replan(resize.job_id, resize.change, [before](LiveJob& stopping) {
    stopping.before = before;
    stopping.went_back = false;
  });
}

void Service::ShowWaits(std::vector<WaitDecision>& waits) {
  std::map<std::pair<std::string, Reason>, int64_t> pending;
  bool may_start_soon = false;
  bool wants_capacity = false;
  bool while_begins = false;
  bool pause_begins = false;
  const std::string unused = WhyNoWorker();
  for (WaitDecision& wait : waits) {
    LiveJob& live = *live_.at(wait.job_id);
    if (wait.infeasible) live.infeasible = Infeasible{cluster_number_, wait.message};
    if (wait.given_up) {
      live.planning_pause = PlanningPause{cluster_number_, wait.message,
                                          clock_.Monotonic() + options_.planning.first_pause};
      pause_begins = true;
    }
    if (!wait.for_planning) {
      live.planning_since.reset();
    } else if (!live.planning_since) {
      live.planning_since = clock_.Monotonic();
      while_begins = true;
    }
    may_start_soon |=
        wait.for_planning && clock_.Monotonic() - *live.planning_since < options_.planning.patience;
    wants_capacity |= wait.reason == Reason::kWaitingForCapacity;
    if (wait.reason == Reason::kWaitingForWorkers && !unused.empty()) wait.message = unused;
    ++pending[{live.current.job.queue, wait.reason}];
    const double now = clock_.UnixSeconds();
    if (wait.start_in_seconds && !live.predicted_start) {
      live.predicted_start = now + *wait.start_in_seconds;
    }
    bool changed = false;
    const std::string id = wait.job_id;
    SetOverlay(id, [&](Overlay& overlay) {
      changed = overlay.reason != wait.reason || overlay.message != wait.message;
      overlay.reason = wait.reason;
      overlay.message = wait.message;
      overlay.waiting = std::ssize(waits);
      overlay.decided_at = now;
      overlay.wait = std::move(wait);
    });
    if (changed) job_changes_.Notify(id);
  }
  if (while_begins) loop_.PostAfter(options_.planning.patience, [this] { ScheduleSoon(); });
  if (pause_begins) loop_.PostAfter(options_.planning.first_pause, [this] { ScheduleSoon(); });
  metrics_.SetPending(pending);
  queue_waits_ = wants_capacity || may_start_soon;
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
      if (placement.worker_id != intent.worker_id) continue;
      order.ranks = placement.ranks;
      order.joins = placement.part == PlacementPart::kJoining;
    }
    order.membership = current.attempt->membership;
    link.Start(order);
  }
  (void)Failpoint("coordinator.dispatch.after_send");
}

}  // namespace weft::coordinator
