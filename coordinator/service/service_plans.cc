#include <algorithm>

#include "common/clock.h"
#include "common/env_confined.h"
#include "common/model/job_paths.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/service/imported_sizes.h"
#include "coordinator/service/memory_advice.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// For the advice to a job that ran out of memory; while it is found other reports of it wait, and
/// its ranks must not be missed.
constexpr std::chrono::seconds kAdviceBudget(2);

}  // namespace

Result<std::pair<JobSpec, ClusterProfile>> Service::ToPlan(
    const JobSpec& spec, const std::optional<ClusterProfile>& cluster) {
  WEFT_RETURN_IF_ERROR(ValidateJob(spec));
  WEFT_RETURN_IF_ERROR(CheckPaths(spec, options_.data_roots, kRootsHint));
  JobSpec resolved = spec;
  ConfinedEnv files(options_.data_roots, kRootsHint);
  WEFT_RETURN_IF_ERROR(ResolveImport(files, resolved));
  if (cluster) return std::pair(std::move(resolved), *cluster);
  ClusterProfile attached;
  for (WorkerView& worker : Workers()) {
    if (worker.state == WorkerState::kReady) attached.workers.push_back(worker.profile);
  }
  if (attached.workers.empty()) {
    return UnavailableError(
        "no worker is attached to plan for; hint: start weft-worker, or "
        "give a cluster file");
  }
  return std::pair(std::move(resolved), std::move(attached));
}

Result<PlanReport> Service::TimedPlan(const JobSpec& spec, const ClusterProfile& cluster,
                                      const std::stop_token& stop) {
  const Duration begin = clock_.Monotonic();
  Result<PlanReport> report = plan_(spec, cluster, stop);
  const double seconds = SecondsSince(clock_, begin);
  metrics_.Planned(report.ok(), seconds, report.ok() ? report->candidates_considered : 0);
  if (report.ok()) report->planning_seconds = seconds;
  return report;
}

template <class Answer, class Find>
std::shared_ptr<PlanTicket> Service::PlanForCall(Find find,
                                                 std::function<void(Result<Answer>)> done) {
  auto work = [this, find = std::move(find), done](const PlanTicket& ticket) {
    Result<Answer> answer = AbortedError("planning was stopped");
    if (!ticket.stop().stop_requested()) answer = find(ticket.stop());
    if (!answer.ok() && answer.status().code() == StatusCode::kAborted && ticket.overran()) {
      char text[160];
      std::snprintf(
          text, sizeof(text),
          "planning took longer than the %g s that it may take; hint: leave fewer choices "
          "open, or plan with weft on a machine of your own (--cluster)",
          ToSeconds(options_.planning.call_budget));
      answer = ExhaustedError(text);
    }
    done(std::move(answer));
  };
  auto ticket = call_pool_.Add(options_.planning.call_budget, std::move(work));
  if (ticket == nullptr) {
    done(UnavailableError("too many calls wait for a plan already; hint: try again later"));
  }
  return ticket;
}

std::shared_ptr<PlanTicket> Service::PlanFor(const JobSpec& spec,
                                             const std::optional<ClusterProfile>& cluster,
                                             int64_t top,
                                             std::function<void(Result<PlanReport>)> done) {
  return PlanForCall<PlanReport>(
      [this, spec, cluster, top](const std::stop_token& stop) -> Result<PlanReport> {
        WEFT_ASSIGN_OR_RETURN(const auto asked, ToPlan(spec, cluster));
        WEFT_ASSIGN_OR_RETURN(PlanReport report, TimedPlan(asked.first, asked.second, stop));
        if (std::ssize(report.candidates) > top) {
          report.candidates.resize(static_cast<size_t>(top));
        }
        return report;
      },
      std::move(done));
}

std::shared_ptr<PlanTicket> Service::ExplainFor(
    const JobSpec& spec, const std::optional<ClusterProfile>& cluster, const PlanQuery& query,
    std::function<void(Result<planner::PlanExplanation>)> done) {
  return PlanForCall<planner::PlanExplanation>(
      [this, spec, cluster,
       query](const std::stop_token& stop) -> Result<planner::PlanExplanation> {
        WEFT_ASSIGN_OR_RETURN(const auto asked, ToPlan(spec, cluster));
        const Duration begin = clock_.Monotonic();
        WEFT_ASSIGN_OR_RETURN(planner::PlanExplanation explanation,
                              planner::ExplainPlan(asked.first, asked.second, query, stop));
        explanation.report.planning_seconds = SecondsSince(clock_, begin);
        return explanation;
      },
      std::move(done));
}

std::shared_ptr<PlanTicket> Service::PlanPhasesFor(
    const JobSpec& spec, const std::optional<ClusterProfile>& cluster, const PlanQuery& query,
    std::function<void(Result<planner::PhasePlans>)> done) {
  return PlanForCall<planner::PhasePlans>(
      [this, spec, cluster, query](const std::stop_token& stop) -> Result<planner::PhasePlans> {
        WEFT_ASSIGN_OR_RETURN(const auto asked, ToPlan(spec, cluster));
        const Duration begin = clock_.Monotonic();
        WEFT_ASSIGN_OR_RETURN(planner::PhasePlans plans,
                              planner::PlanPhases(asked.first, asked.second, query, stop));
        plans.planning_seconds = SecondsSince(clock_, begin);
        return plans;
      },
      std::move(done));
}

void Service::CancelPlanning(const std::shared_ptr<PlanTicket>& ticket) {
  if (ticket != nullptr) call_pool_.Cancel(ticket);
}

PlanFunction Service::Known(const std::string& owner) {
  return [this, owner](const JobSpec& spec, const ClusterProfile& cluster) {
    return plans_.Find(spec, cluster, owner);
  };
}

void Service::PlansChanged(const std::string& owner) {
  if (owner.empty()) {
    ScheduleSoon();
  } else if (live_.contains(owner)) {
    loop_.Post([this] { LookAtPlans(); });
  }
}

void Service::AdviseOnMemory(const std::string& job_id, const PlacementReport& report,
                             const std::function<void(const PlacementReport&)>& commit) {
  const auto it = live_.find(job_id);
  if (it == live_.end() || !it->second->current.attempt ||
      it->second->current.attempt->epoch != report.epoch) {
    return commit(report);
  }
  LiveJob& live = *it->second;
  if (live.busy) {
    live.waiting.push_back([=, this] { AdviseOnMemory(job_id, report, commit); });
    return;
  }
  live.busy = true;
  auto work = [this, job_id, report, commit, spec = live.Phase(), plan = live.current.attempt->plan,
               cluster = TakeSnapshot().cluster](const PlanTicket& ticket) {
    PlacementReport advised = report;
    const std::stop_token stop = ticket.stop();
    const PlanFunction find = [&](const JobSpec& other, const ClusterProfile& machines) {
      return TimedPlan(other, machines, stop);
    };
    std::string advice;
    if (!stop.stop_requested()) advice = MemoryAdvice(spec, plan, cluster, find);
    if (!stop.stop_requested()) advised.message += "; " + advice;
    loop_.Post([this, job_id, advised = std::move(advised), commit] {
      if (auto job = live_.find(job_id); job != live_.end()) job->second->busy = false;
      commit(advised);
    });
  };
  const auto ticket = queue_pool_.Add(kAdviceBudget, work);
  if (ticket == nullptr) {  // shutting down
    live.busy = false;
    return commit(report);
  }
  loop_.PostAfter(kAdviceBudget, [this, ticket] { queue_pool_.Cancel(ticket); });
}

}  // namespace weft::coordinator
