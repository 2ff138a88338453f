#include "coordinator/planner/report/phase_plans.h"

#include <utility>

#include "common/duration_text.h"
#include "common/spec/growth_fit.h"
#include "common/spec/phase_search.h"
#include "common/spec/phases.h"
#include "common/text.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/money.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

Status CheckWishes(const PlanQuery& query) {
  const std::pair<bool, const char*> wishes[] = {
      {query.frontier, "frontier"},
      {query.measure > 0, "measure"},
      {query.finish_within_seconds > 0, "finish_within_seconds"}};
  for (const auto& [asked, name] : wishes) {
    if (!asked) continue;
    return InvalidError(std::string(name) +
                        " is asked of one plan, and each phase of the job has its own; hint: "
                        "`weft plan --phase 1`");
  }
  return OkStatus();
}

/// What a phase computes over what its steps would with its largest size alone: in a search they
/// have others, and a growth operator may be learned before.
double WorkShare(const JobSpec& job, size_t phase) {
  const JobSpec own = JobOfPhase(job, phase);
  const double steps = static_cast<double>(own.train.steps) * StepFlops(own);
  return SearchFlopsShare(job, phase) + GrowthFitFlops(job, phase) / steps;
}

/// `share`: WorkShare of the phase.
PhasePlan PhasePlanOf(const JobSpec& phase, double share, std::string title,
                      PlanExplanation explanation) {
  PhasePlan one;
  one.phase = std::move(title);
  one.layers = phase.model.layers;
  one.width = phase.model.width;
  one.heads = phase.model.heads;
  one.parameters = explanation.report.parameters;
  one.steps = explanation.steps;
  one.tokens_per_step = explanation.tokens_per_step;
  one.plan = std::move(explanation.report.candidates.front().plan);
  one.mesh = MeshText(one.plan);
  const PlanDetail& detail = explanation.details.front();
  one.run = explanation.run;
  one.seconds = TotalSeconds(one.run);
  one.flops = share * static_cast<double>(one.steps) * one.plan.prediction.model_flops_per_step;
  one.price = detail.price_per_hour * one.seconds / 3600;
  one.kilowatt_hours = detail.watts / 1000 * one.seconds / 3600;
  return one;
}

/// "-" where it is not known.
std::string Known(double value, const std::string& text) {
  return value > 0 ? text : "-";
}

/// Where the time of each phase goes.
std::string RunTimes(const PhasePlans& plans) {
  std::vector<std::vector<std::string>> rows = {{"where the time goes", "start", "weights",
                                                 "learned growth", "warm-up", "steps", "validation",
                                                 "checkpoints", "all"}};
  const auto add = [&](const std::string& title, const RunTime& run) {
    const auto times = [](int64_t count, double seconds) {
      return std::to_string(count) + " in " + HumanDuration(seconds);
    };
    rows.push_back({title, HumanDuration(run.start_seconds), HumanDuration(run.weights_seconds),
                    Known(run.growth_fit_seconds, HumanDuration(run.growth_fit_seconds)),
                    HumanDuration(run.warm_up_seconds), HumanDuration(run.steps_seconds),
                    times(run.validations, run.validation_seconds),
                    times(run.checkpoints, run.checkpoint_seconds),
                    HumanDuration(TotalSeconds(run))});
  };
  for (const PhasePlan& one : plans.phases) add(one.phase, one.run);
  add("all", plans.run);
  return AlignedRows(rows, {false, true, true, true, true, true, true, true, true});
}

}  // namespace

Result<PhasePlans> PlanPhases(const JobSpec& job, const ClusterProfile& cluster,
                              const PlanQuery& query, const std::stop_token& stop) {
  WEFT_RETURN_IF_ERROR(CheckWishes(query));
  WEFT_RETURN_IF_ERROR(ValidateJob(job));
  PhasePlans plans;
  plans.job = job.name;
  bool priced = true, metered = true;
  for (size_t i = 0; i < job.phases.size(); ++i) {
    const std::string title = PhaseTitle(job, i);
    PlanQuery of_phase = query;
    of_phase.phase = static_cast<int64_t>(i) + 1;
    Result<PlanExplanation> explanation = ExplainPlan(job, cluster, of_phase, stop);
    if (!explanation.ok()) return explanation.status().WithContext(title);
    plans.currency = explanation->currency;
    const PhasePlan& one = plans.phases.emplace_back(
        PhasePlanOf(JobOfPhase(job, i), WorkShare(job, i), title, *std::move(explanation)));
    plans.steps += one.steps;
    AddTo(plans.run, one.run);
    plans.seconds += one.seconds;
    plans.flops += one.flops;
    plans.price += one.price;
    plans.kilowatt_hours += one.kilowatt_hours;
    priced = priced && one.price > 0;
    metered = metered && one.kilowatt_hours > 0;
  }
  if (!priced) plans.price = 0;
  if (!metered) plans.kilowatt_hours = 0;
  return plans;
}

std::string FormatPhasePlans(const PhasePlans& plans) {
  std::vector<std::vector<std::string>> rows = {{"phase", "layers", "width", "parameters", "ranks",
                                                 "mesh", "memory/rank", "step", "steps", "time",
                                                 "FLOPs", "price", "energy"}};
  for (const PhasePlan& one : plans.phases) {
    const Prediction& prediction = one.plan.prediction;
    rows.push_back({one.phase, std::to_string(one.layers), std::to_string(one.width),
                    HumanCount(static_cast<double>(one.parameters)),
                    std::to_string(RankCount(one.plan.mesh)), one.mesh,
                    HumanBytes(TotalBytes(prediction.memory_per_rank)),
                    HumanSeconds(prediction.step_seconds), std::to_string(one.steps),
                    HumanDuration(one.seconds), FormatNumber("%.3g", one.flops),
                    Known(one.price, Money(one.price, plans.currency)),
                    Known(one.kilowatt_hours, FormatNumber("%.3g kWh", one.kilowatt_hours))});
  }
  rows.push_back({"all", "", "", "", "", "", "", "", std::to_string(plans.steps),
                  HumanDuration(plans.seconds), FormatNumber("%.3g", plans.flops),
                  Known(plans.price, Money(plans.price, plans.currency)),
                  Known(plans.kilowatt_hours, FormatNumber("%.3g kWh", plans.kilowatt_hours))});
  return AlignedRows(rows, {false, true, true, true, true, false, true, true, true, true, true,
                            true, true}) +
         "\n" + RunTimes(plans) + "Start and warm-up are assumed; `--phase N` explains one plan.\n";
}

}  // namespace weft::planner
