#include <algorithm>
#include <string>
#include <vector>

#include "common/text.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

/// "40 M of 6.78 G (0.59 %)".
std::string TrainedText(const PlanReport& report) {
  const auto trained = static_cast<double>(report.trained_parameters);
  const auto all = static_cast<double>(report.parameters);
  return HumanCount(trained) + " of " + HumanCount(all) + " (" +
         FormatNumber("%.2g %%", 100 * trained / all) + ")";
}

/// What is frozen, and what that saves; nothing where all is trained.
void AddFrozen(const PlanReport& report, std::vector<std::vector<std::string>>& rows) {
  if (report.trained_parameters >= report.parameters) return;
  rows.push_back({"trained", TrainedText(report)});
  if (report.skipped_weight_gradient_flops > 0) {
    rows.push_back({"weight gradients skipped",
                    HumanCount(report.skipped_weight_gradient_flops) + "FLOPs a step"});
  }
  if (report.unkept_activation_bytes > 0) {
    rows.push_back({"activations not kept", HumanBytes(report.unkept_activation_bytes)});
  }
}

std::string Chosen(const PlanCandidate& candidate, const PlanReport& report) {
  const Plan& plan = candidate.plan;
  const Prediction& prediction = plan.prediction;
  std::string text = "Plan: " + candidate.reason + "\n";
  std::vector<std::vector<std::string>> rows = {
      {"parameters", HumanCount(static_cast<double>(report.parameters))},
      {"ranks", std::to_string(RankCount(plan.mesh)) + " x " +
                    std::to_string(plan.threads_per_rank) + " threads, on " + PlacementText(plan)},
      {"micro-batch", std::to_string(plan.micro_batch) + " sequences x " +
                          std::to_string(plan.accumulation_steps) + " per step and rank"},
      {"precision", plan.precision},
      {"recomputed", RecomputedText(plan)}};
  AddFrozen(report, rows);
  if (plan.zero_stage > 0) rows.push_back({"shared", SharedText(plan)});
  if (const std::string outside = OutsideText(plan); !outside.empty()) {
    rows.push_back({"outside the device", outside});
  }
  rows.push_back({"step", HumanSeconds(prediction.step_seconds) + ", " +
                              HumanCount(prediction.tokens_per_second) + " tokens/s, " +
                              HumanCount(prediction.model_flops_per_step /
                                         std::max(prediction.step_seconds, 1e-12)) +
                              "FLOP/s of the model"});
  text += AlignedRows(rows, {false, false});

  rows = {{"memory per rank", "", ""}};
  const int64_t total = TotalBytes(prediction.memory_per_rank);
  for (const MemoryComponent& part : Components(prediction.memory_per_rank)) {
    rows.push_back({std::string(part.name), HumanBytes(part.bytes),
                    Percent(static_cast<double>(part.bytes), static_cast<double>(total))});
  }
  rows.push_back({"total", HumanBytes(total), ""});
  text += "\n" + AlignedRows(rows, {false, true, true});

  rows = {{"time per step", "", ""}};
  for (const TimeComponent& part : Components(prediction.time)) {
    rows.push_back({std::string(part.name), HumanSeconds(part.seconds),
                    Percent(part.seconds, prediction.step_seconds)});
  }
  rows.push_back({"total", HumanSeconds(prediction.step_seconds), ""});
  return text + "\n" + AlignedRows(rows, {false, true, true});
}

}  // namespace

std::string FormatPlanReport(const PlanReport& report) {
  std::string text;
  std::vector<std::vector<std::string>> rows = {{"", "ranks", "of them", "threads", "micro-batch",
                                                 "recomputed", "memory/rank", "step", "why"}};
  for (const PlanCandidate& candidate : report.candidates) {
    const Plan& plan = candidate.plan;
    if (candidate.chosen) text += Chosen(candidate, report);
    rows.push_back(
        {candidate.chosen     ? "*"
         : candidate.feasible ? ""
                              : "x",
         std::to_string(RankCount(plan.mesh)), MeshText(plan),
         std::to_string(plan.threads_per_rank),
         std::to_string(plan.micro_batch) + " x " + std::to_string(plan.accumulation_steps),
         std::to_string(BlocksWith(plan, "recompute")),
         HumanBytes(TotalBytes(plan.prediction.memory_per_rank)),
         candidate.feasible ? HumanSeconds(plan.prediction.step_seconds) : "-",
         candidate.chosen ? "chosen" : candidate.reason});
  }
  if (report.candidates.empty()) return "No plans.\n";
  text += "\nCandidates (" + std::to_string(report.candidates.size()) + " of " +
          std::to_string(report.candidates_considered) + " considered; * chosen, x does not fit)\n";
  return text + AlignedRows(rows, {false, true, false, true, true, true, true, true, false});
}

}  // namespace weft::planner
