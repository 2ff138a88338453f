#include "coordinator/planner/report/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "common/duration_text.h"
#include "common/hint.h"
#include "common/spec/phases.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/alternatives.h"
#include "coordinator/planner/report/costs.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/report/frontier.h"
#include "coordinator/planner/report/measure.h"
#include "coordinator/planner/report/plan_detail.h"
#include "coordinator/planner/report/sensitivity.h"
#include "coordinator/planner/report/timeline.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

class Explainer {
 public:
  Explainer(const JobSpec& job, const ClusterProfile& cluster, const PlanQuery& query,
            const std::stop_token& stop, const JobCheck& check)
      : job_(job),
        query_(query),
        stop_(stop),
        check_(check),
        all_(WithoutUnfit(job, cluster)),
        on_devices_(WantsDevices(job, all_)),
        cluster_(all_) {}

  Result<PlanExplanation> Run() {
    answer_.job = job_.name;
    answer_.device = on_devices_ ? "GPU" : "machine";
    answer_.steps = job_.train.steps;
    answer_.tokens_per_step = job_.train.global_batch * SequenceLength(job_);
    answer_.currency = query_.costs.currency;
    if (query_.most_devices > 0 && query_.most_devices < CountDevices(all_, on_devices_)) {
      cluster_ = FirstDevices(all_, on_devices_, query_.most_devices);
      answer_.notes.push_back("at most " + Devices(query_.most_devices) + ", as asked, of " +
                              std::to_string(CountDevices(all_, on_devices_)));
    }
    if (query_.frontier || query_.goal == "cheapest") {
      WEFT_ASSIGN_OR_RETURN(answer_.frontier, Frontier(cluster_));
    }
    if (query_.goal == "cheapest") WEFT_RETURN_IF_ERROR(TakeCheapest());
    Result<PlanReport> report = PlanOf(cluster_);
    if (!report.ok()) return WithRemedies(report.status());
    answer_.report = *std::move(report);
    answer_.devices = CountDevices(cluster_, on_devices_);
    const PlanCandidate& chosen = answer_.report.candidates.front();
    WEFT_RETURN_IF_ERROR(CheckFinish(chosen.plan.prediction));
    answer_.alternatives = AlternativesOf(job_, cluster_, &chosen.plan.prediction, check_, stop_);
    answer_.sensitivity = SensitivityOf(job_, cluster_, chosen.plan, stop_);
    answer_.timeline = TimelineOf(job_, cluster_, chosen.plan);
    answer_.fewest_devices =
        FewestDevices(cluster_, on_devices_, [&](const auto& part) { return Fits(part); });
    answer_.lines = LinesOf(job_, chosen.plan);
    if (stop_.stop_requested()) return AbortedError("planning was stopped");
    if (query_.measure > 0) {
      WEFT_ASSIGN_OR_RETURN(answer_.measure, AdviseToMeasure(job_, cluster_, query_.any_mesh,
                                                             query_.measure, check_));
    }
    NoteUnknownCosts(chosen.plan);
    answer_.report.candidates.resize(
        std::min(answer_.report.candidates.size(), static_cast<size_t>(query_.top)));
    for (const PlanCandidate& candidate : answer_.report.candidates) {
      answer_.details.push_back(DetailOf(job_, cluster_, query_.costs, candidate));
    }
    return std::move(answer_);
  }

 private:
  std::string Devices(int64_t count) const {
    return std::to_string(count) + " " + answer_.device + (count == 1 ? "" : "s");
  }

  Result<PlanReport> PlanOf(const ClusterProfile& cluster) const {
    return query_.any_mesh ? PlanAnyMesh(job_, cluster, 0, stop_, check_)
                           : PlanJobPassing(job_, cluster, check_, stop_);
  }

  Result<std::vector<FrontierPoint>> Frontier(const ClusterProfile& cluster) const {
    return FrontierOf(job_, cluster, query_.costs,
                      [&](const ClusterProfile& part) { return PlanOf(part); });
  }

  /// Whether any plan has room in memory, whatever its time.
  bool Fits(const ClusterProfile& part) const {
    const Result<JobSet> jobs = JobsOf(job_, part, query_.any_mesh, check_);
    return jobs.ok() && Search(*jobs, part, 0, 1, stop_).fit > 0;
  }

  /// How many times the memory of all machines would do, in hundredths; 0: none would.
  double LeastMemory() const {
    const auto fits = [&](int hundredths) {
      ClusterProfile larger = cluster_;
      const auto grow = [&](int64_t& bytes) { bytes = bytes / 100 * hundredths; };
      for (WorkerProfile& worker : larger.workers) {
        grow(worker.memory_limit_bytes);
        for (DeviceSpec& device : worker.devices) grow(device.memory_limit_bytes);
      }
      return Fits(larger);
    };
    int too_little = 100, enough = 200;
    constexpr int kMost = 100 * 1024;
    for (; !fits(enough); enough *= 2) {
      if (enough > kMost) return 0;
      too_little = enough;
    }
    while (enough - too_little > 1) {
      const int middle = (too_little + enough) / 2;
      (fits(middle) ? enough : too_little) = middle;
    }
    return enough / 100.0;
  }

  bool InTime(double finish_seconds) const {
    return query_.finish_within_seconds == 0 || finish_seconds <= query_.finish_within_seconds;
  }

  /// Leaves the machines of the cheapest point that is in time.
  Status TakeCheapest() {
    const FrontierPoint* cheapest = nullptr;
    bool fits = false;
    for (const FrontierPoint& point : answer_.frontier) {
      fits |= point.reason.empty();
      if (point.price == 0 || !InTime(point.finish_seconds)) continue;
      if (cheapest == nullptr || point.price < cheapest->price) cheapest = &point;
    }
    // Planning says better what is wrong.
    if (!fits) return OkStatus();
    const bool priced = std::any_of(answer_.frontier.begin(), answer_.frontier.end(),
                                    [](const FrontierPoint& point) { return point.price > 0; });
    if (!priced) {
      return InvalidError(
          "the cheapest plan cannot be found: no machine has a price; hint: give price_per_hour or "
          "device_price_per_hour under costs of the cluster file, or in a file with --costs");
    }
    if (cheapest == nullptr) return OkStatus();  // CheckFinish says by how much
    answer_.notes.push_back(
        "the cheapest run" +
        std::string(query_.finish_within_seconds > 0 ? " that is in time" : "") + ": " +
        Devices(cheapest->devices));
    cluster_ = ClusterOfPoint(job_, cluster_, *cheapest);
    return OkStatus();
  }

  Status CheckFinish(const Prediction& prediction) const {
    const double finish = static_cast<double>(job_.train.steps) * prediction.step_seconds;
    if (InTime(finish)) return OkStatus();
    const double limit = query_.finish_within_seconds;
    std::string text = "the fastest plan makes its " + std::to_string(job_.train.steps) +
                       " steps in " + HumanDuration(finish) + ", " + HumanDuration(finish - limit) +
                       " more than the " + HumanDuration(limit) + " asked for; hint: ";
    if (query_.most_devices > 0) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<FrontierPoint> points, Frontier(all_));
      for (const FrontierPoint& point : points) {
        if (!point.reason.empty() || !InTime(point.finish_seconds)) continue;
        text += "allow " + Devices(point.devices) + " (" + HumanDuration(point.finish_seconds) +
                "), or ";
        break;
      }
    }
    for (const Alternative& way : AlternativesOf(job_, cluster_, &prediction, check_, stop_)) {
      const double own = static_cast<double>(job_.train.steps) * way.step_seconds;
      if (!way.fits || !InTime(own)) continue;
      text += "ask for " + way.lines + " (" + HumanDuration(own) + "), or ";
      break;
    }
    const auto steps = static_cast<int64_t>(std::floor(limit / prediction.step_seconds));
    return ExhaustedError(text + "make no more than " + std::to_string(steps) +
                          " steps (train.steps), or allow more time");
  }

  /// The planner's answer that nothing fits, with what was found to fit in place of what might.
  Status WithRemedies(const Status& status) const {
    if (status.code() != StatusCode::kExhausted) return status;
    std::string found;
    const auto add = [&](const std::string& text) {
      found += (found.empty() ? "" : ", or ") + text;
    };
    if (query_.most_devices > 0) {
      const int64_t devices =
          FewestDevices(all_, on_devices_, [&](const auto& part) { return Fits(part); });
      if (devices > 0) add("allow " + Devices(devices));
    }
    const std::string fitting =
        WhatWouldFit(AlternativesOf(job_, cluster_, nullptr, check_, stop_));
    if (!fitting.empty()) add("ask for " + fitting);
    if (const double times = LeastMemory(); times > 0) {
      char text[64];
      std::snprintf(text, sizeof(text), "give %ss %.2f times the memory", answer_.device.c_str(),
                    times);
      add(text);
    }
    if (found.empty()) return status;
    return ExhaustedError(SplitHint(status.message()).text + "; hint: it would fit: " + found);
  }

  void NoteUnknownCosts(const Plan& plan) {
    const RunningCost cost = CostOf(plan, cluster_, query_.costs);
    const auto note = [&](const char* what, const std::string& machine, const char* fields) {
      if (machine.empty()) return;
      answer_.notes.push_back(std::string(what) + " of " + machine + " is not known: " + fields +
                              " under costs of the cluster file, or in a file with --costs");
    };
    note("the price", cost.unpriced, "price_per_hour or device_price_per_hour");
    note("the power", cost.unmetered, "watts or device_watts");
  }

  const JobSpec& job_;
  const PlanQuery& query_;
  const std::stop_token& stop_;
  const JobCheck& check_;
  const ClusterProfile all_;
  const bool on_devices_;
  ClusterProfile cluster_;  ///< What is left of it by the wishes.
  PlanExplanation answer_;
};

Result<PlanExplanation> ExplainPhase(const JobSpec& job, const ClusterProfile& cluster,
                                     const PlanQuery& query, const std::stop_token& stop) {
  const auto phases = std::ssize(job.phases);
  if (query.phase > phases) {
    return InvalidError("phase " + std::to_string(query.phase) + " is asked for, and the job has " +
                        std::to_string(phases) + "; hint: `weft plan FILE` shows all");
  }
  const auto phase = static_cast<size_t>(query.phase - 1);
  const JobSpec own = PlannedJobOfPhase(job, phase);
  return Explainer(own, cluster, query, stop, CheckOfPhase(job, phase)).Run();
}

}  // namespace

Result<PlanExplanation> ExplainPlan(const JobSpec& job, const ClusterProfile& cluster,
                                    const PlanQuery& query, const std::stop_token& stop) {
  if (query.phase == 0) WEFT_RETURN_IF_ERROR(CheckOnePhase(job));
  WEFT_RETURN_IF_ERROR(ValidateJob(job));
  Result<PlanExplanation> explanation =
      query.phase > 0 ? ExplainPhase(job, cluster, query, stop)
                      : Explainer(job, cluster, query, stop, ValidateJob).Run();
  if (stop.stop_requested()) return AbortedError("planning was stopped");
  if (!explanation.ok()) return explanation;
  explanation->run =
      RunTimeOf(job, static_cast<size_t>(std::max<int64_t>(query.phase - 1, 0)), cluster,
                explanation->report.candidates.front().plan, explanation->timeline);
  return explanation;
}

}  // namespace weft::planner
