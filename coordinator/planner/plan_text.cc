#include "coordinator/planner/plan_text.h"

#include <algorithm>

#include "common/model/remat_schedule.h"
#include "common/spec/shard_ranks.h"

namespace weft::planner {
namespace {

/// Writes rising numbers like "0 to 3, 7".
std::string RangesText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (end - i > 1) text += " to " + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::string AlignedRows(const std::vector<std::vector<std::string>>& rows,
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

int64_t BlocksWith(const Plan& plan, std::string_view policy) {
  return std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), policy);
}

std::string RecomputedText(const Plan& plan) {
  std::string text = std::to_string(BlocksWith(plan, "recompute")) + " of " +
                     std::to_string(plan.block_memory_policy.size()) + " blocks";
  if (const int64_t attention = BlocksWith(plan, "attention"); attention > 0) {
    text += ", attention of " + std::to_string(attention);
  }
  if (plan.recompute_segment > 1) {
    text += ", " + std::to_string(plan.recompute_segment) + " at once";
  }
  const auto layers = std::ssize(plan.block_memory_policy);
  if (const auto schedule = ParseRemat(plan.recompute_schedule, layers);
      !plan.recompute_schedule.empty() && schedule.ok()) {
    text += ", " + std::to_string(ReplayedBlocks(*schedule)) + " times in all";
    if (Transfers(*schedule)) {
      text += ", what " + std::to_string(SentBlocks(*schedule)) + " keep waits on the host";
    }
  }
  return text;
}

std::string SharedText(const Plan& plan) {
  std::string text = "the optimizer's state";
  if (plan.zero_stage > 1) text += plan.zero_stage > 2 ? ", gradients" : " and gradients";
  if (plan.zero_stage > 2) text += " and parameters";
  const int64_t shard_ranks = ShardRanks(plan);
  text += " among " + std::to_string(shard_ranks) + " ranks";
  const int64_t ranks = GradientRanks(plan.mesh);
  if (plan.mesh.expert > 1)
    text += ", of experts among " + std::to_string(ranks / plan.mesh.expert);
  const int64_t groups = ranks / shard_ranks * plan.mesh.tensor * plan.mesh.pipeline;
  return groups > 1 ? text + ", in " + std::to_string(groups) + " groups" : text;
}

std::string OutsideText(const Plan& plan) {
  std::string text;
  const auto add = [&](const char* what, const std::string& place) {
    if (place == "none") return;
    text += (text.empty() ? "" : ", ") + std::string(what) +
            (place == "host" ? " on the host" : " in a file");
  };
  add("optimizer", plan.offload_optimizer);
  if (!plan.device_updated_units.empty()) {
    text += " except that of units " + RangesText(plan.device_updated_units);
  }
  add("weights", plan.offload_parameters);
  if (!plan.resident_units.empty()) {
    text += ", of units " + RangesText(plan.resident_units) + " once a step";
  }
  add("activations", plan.offload_activations);
  return text;
}

std::string MeshText(const Plan& plan) {
  std::string text = std::to_string(plan.mesh.data) + " data";
  const auto add = [&](int64_t ranks, const char* name) {
    if (ranks > 1) text += " x " + std::to_string(ranks) + " " + name;
  };
  add(plan.mesh.tensor, plan.sequence_parallel ? "tensor and sequence" : "tensor");
  if (plan.tensor_rows > 1) {
    text += " (" + std::to_string(plan.tensor_rows) + " x " +
            std::to_string(plan.mesh.tensor / plan.tensor_rows) + ")";
  }
  add(plan.mesh.context, plan.context_method == "ulysses" ? "context (ulysses)" : "context");
  add(plan.mesh.expert, "expert");
  add(plan.mesh.pipeline, "pipeline");
  if (plan.mesh.pipeline > 1) {
    text += " (" + plan.pipeline_schedule;
    if (plan.pipeline_chunks > 1) text += " in " + std::to_string(plan.pipeline_chunks);
    text += ')';
  }
  if (const std::string outside = OutsideText(plan); !outside.empty()) text += ", " + outside;
  if (plan.zero_stage == 0) return text;
  text += ", ZeRO " + std::to_string(plan.zero_stage);
  if (const int64_t shard_ranks = ShardRanks(plan); shard_ranks < GradientRanks(plan.mesh)) {
    text += " in groups of " + std::to_string(shard_ranks);
  }
  return text;
}

std::string PlacementText(const Plan& plan) {
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
      text += ')';
    }
    i = end;
  }
  return text;
}

}  // namespace weft::planner
