#include "coordinator/service/memory_advice.h"

#include <algorithm>
#include <vector>

#include "coordinator/planner/units.h"

namespace weft::coordinator {
namespace {

/// Most first; those that need nothing are left out.
std::string Parts(const MemoryBreakdown& memory) {
  std::vector<planner::MemoryComponent> parts;
  for (const planner::MemoryComponent& part : planner::Components(memory)) {
    if (part.bytes > 0) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const planner::MemoryComponent& part : parts) {
    text +=
        (text.empty() ? "" : ", ") + std::string(part.name) + " " + planner::HumanBytes(part.bytes);
  }
  return text;
}

}  // namespace

std::string MemoryAdvice(const JobSpec& spec, const Plan& plan, const ClusterProfile& cluster,
                         const PlanFunction& find) {
  const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
  std::string text = "the plan expected " + planner::HumanBytes(TotalBytes(memory)) +
                     " per rank (" + Parts(memory) + ")";
  JobSpec smaller = WithLessMemory(spec, plan);
  if (smaller.resources.device == "auto") smaller.resources.device = plan.device;
  const std::string limit = planner::HumanBytes(smaller.resources.memory_per_rank_bytes);
  Result<PlanReport> report = find(smaller, cluster);
  if (!report.ok()) return text + "; within " + limit + ": " + report.status().message();
  if (report->candidates.empty() || !report->candidates.front().feasible) {
    return text + "; within " + limit + " nothing fits";
  }
  const Plan& best = report->candidates.front().plan;
  const auto recomputed =
      std::count(best.block_memory_policy.begin(), best.block_memory_policy.end(), "recompute");
  return text + "; within " + limit + " this would fit: " + std::to_string(RankCount(best.mesh)) +
         " ranks, micro-batch " + std::to_string(best.micro_batch) + ", " +
         std::to_string(recomputed) + " of " + std::to_string(best.block_memory_policy.size()) +
         " blocks recomputed, " + planner::HumanBytes(TotalBytes(best.prediction.memory_per_rank)) +
         " per rank";
}

}  // namespace weft::coordinator
