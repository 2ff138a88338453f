#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/remat_schedule.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

/// Rows of cells as aligned columns; the first row is the heading. Numbers stand at the right.
std::string Table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& align_right) {
  std::vector<size_t> widths(align_right.size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += " " + (align_right[i] ? padding + row[i] : row[i] + padding) + " ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Percent(double part, double whole) {
  return std::to_string(static_cast<int>(whole > 0 ? part / whole * 100 + 0.5 : 0)) + " %";
}

int64_t Blocks(const Plan& plan, std::string_view policy) {
  return std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), policy);
}

std::string Recomputed(const Plan& plan) {
  std::string text = std::to_string(Blocks(plan, "recompute")) + " of " +
                     std::to_string(plan.block_memory_policy.size()) + " blocks";
  if (const int64_t attention = Blocks(plan, "attention"); attention > 0) {
    text += ", attention of " + std::to_string(attention);
  }
  if (plan.recompute_segment > 1) {
    text += ", " + std::to_string(plan.recompute_segment) + " at once";
  }
  const auto layers = std::ssize(plan.block_memory_policy);
  if (const auto schedule = ParseRemat(plan.recompute_schedule, layers);
      !plan.recompute_schedule.empty() && schedule.ok()) {
    text += ", " + std::to_string(ReplayedBlocks(*schedule)) + " times in all";
    if (Travels(*schedule)) {
      text += ", what " + std::to_string(SentBlocks(*schedule)) + " keep waits on the host";
    }
  }
  return text;
}

/// What ranks share out among them, and how many do.
std::string Shared(const Plan& plan) {
  std::string text = "the optimizer's state";
  if (plan.zero_stage > 1) text += plan.zero_stage > 2 ? ", gradients" : " and gradients";
  if (plan.zero_stage > 2) text += " and parameters";
  const int64_t sharers = ShardRanks(plan);
  text += " among " + std::to_string(sharers) + " ranks";
  const int64_t groups = plan.mesh.data / sharers * plan.mesh.tensor * plan.mesh.pipeline;
  return groups > 1 ? text + ", in " + std::to_string(groups) + " groups" : text;
}

/// "8 data x 2 tensor x 4 pipeline (zero_bubble), ZeRO 1": how ranks share the model.
std::string MeshText(const Plan& plan) {
  std::string text = std::to_string(plan.mesh.data) + " data";
  const auto add = [&](int64_t ranks, const char* name) {
    if (ranks > 1) text += " x " + std::to_string(ranks) + " " + name;
  };
  add(plan.mesh.tensor, plan.sequence_parallel ? "tensor and sequence" : "tensor");
  add(plan.mesh.context, "context");
  add(plan.mesh.expert, "expert");
  add(plan.mesh.pipeline, "pipeline");
  if (plan.mesh.pipeline > 1) {
    text += " (" + plan.pipeline_schedule;
    if (plan.pipeline_chunks > 1) text += " in " + std::to_string(plan.pipeline_chunks);
    text += ")";
  }
  return plan.zero_stage > 0 ? text + ", ZeRO " + std::to_string(plan.zero_stage) : text;
}

std::string Placement(const Plan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.rank_workers.size();) {
    size_t end = i;
    while (end < plan.rank_workers.size() && plan.rank_workers[end] == plan.rank_workers[i]) ++end;
    text += (text.empty() ? "" : ", ") + plan.rank_workers[i];
    if (end - i > 1) text += " x " + std::to_string(end - i);
    if (end <= plan.rank_devices.size()) {
      text += end - i > 1 ? " (GPUs" : " (GPU";
      for (size_t rank = i; rank < end; ++rank) {
        text += (rank > i ? ", " : " ") + std::to_string(plan.rank_devices[rank]);
      }
      text += ")";
    }
    i = end;
  }
  return text;
}

std::string Chosen(const PlanCandidate& candidate, int64_t parameters) {
  const Plan& plan = candidate.plan;
  const Prediction& prediction = plan.prediction;
  std::string text = "Plan: " + candidate.reason + "\n";
  std::vector<std::vector<std::string>> rows = {
      {"parameters", HumanCount(static_cast<double>(parameters))},
      {"ranks", std::to_string(RankCount(plan.mesh)) + " x " +
                    std::to_string(plan.threads_per_rank) + " threads, on " + Placement(plan)},
      {"micro-batch", std::to_string(plan.micro_batch) + " sequences x " +
                          std::to_string(plan.accumulation_steps) + " per step and rank"},
      {"precision", plan.precision},
      {"recomputed", Recomputed(plan)}};
  if (plan.zero_stage > 0) rows.push_back({"shared", Shared(plan)});
  rows.push_back({"step", HumanSeconds(prediction.step_seconds) + ", " +
                              HumanCount(prediction.tokens_per_second) + " tokens/s, " +
                              HumanCount(prediction.model_flops_per_step /
                                         std::max(prediction.step_seconds, 1e-12)) +
                              "FLOP/s of the model"});
  text += Table(rows, {false, false});

  rows = {{"memory per rank", "", ""}};
  const int64_t total = TotalBytes(prediction.memory_per_rank);
  for (const MemoryComponent& part : Components(prediction.memory_per_rank)) {
    rows.push_back({std::string(part.name), HumanBytes(part.bytes),
                    Percent(static_cast<double>(part.bytes), static_cast<double>(total))});
  }
  rows.push_back({"total", HumanBytes(total), ""});
  text += "\n" + Table(rows, {false, true, true});

  rows = {{"time per step", "", ""}};
  for (const TimeComponent& part : Components(prediction.time)) {
    rows.push_back({std::string(part.name), HumanSeconds(part.seconds),
                    Percent(part.seconds, prediction.step_seconds)});
  }
  rows.push_back({"total", HumanSeconds(prediction.step_seconds), ""});
  return text + "\n" + Table(rows, {false, true, true});
}

}  // namespace

std::string FormatPlanReport(const PlanReport& report) {
  std::string text;
  std::vector<std::vector<std::string>> rows = {{"", "ranks", "of them", "threads", "micro-batch",
                                                 "recomputed", "memory/rank", "step", "why"}};
  for (const PlanCandidate& candidate : report.candidates) {
    const Plan& plan = candidate.plan;
    if (candidate.chosen) text += Chosen(candidate, report.parameters);
    rows.push_back(
        {candidate.chosen     ? "*"
         : candidate.feasible ? ""
                              : "x",
         std::to_string(RankCount(plan.mesh)), MeshText(plan),
         std::to_string(plan.threads_per_rank),
         std::to_string(plan.micro_batch) + " x " + std::to_string(plan.accumulation_steps),
         std::to_string(Blocks(plan, "recompute")),
         HumanBytes(TotalBytes(plan.prediction.memory_per_rank)),
         candidate.feasible ? HumanSeconds(plan.prediction.step_seconds) : "-",
         candidate.chosen ? "chosen" : candidate.reason});
  }
  if (report.candidates.empty()) return "No plans.\n";
  text += "\nCandidates (" + std::to_string(report.candidates.size()) + " of " +
          std::to_string(report.candidates_considered) + " considered; * chosen, x does not fit)\n";
  return text + Table(rows, {false, true, false, true, true, true, true, true, false});
}

}  // namespace weft::planner
