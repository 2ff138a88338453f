#include "coordinator/service/memory_advice.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "common/model/memory_text.h"
#include "common/model/precision.h"
#include "common/spec/technique_checks.h"

namespace weft::coordinator {
namespace {

int64_t Blocks(const Plan& plan, std::string_view policy) {
  return std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), policy);
}

/// Blocks that are recomputed, or whose attention is.
int64_t Recomputed(const Plan& plan) {
  return Blocks(plan, "recompute") + Blocks(plan, "attention");
}

std::string RecomputedText(const Plan& plan) {
  const int64_t attention = Blocks(plan, "attention");
  return (attention > 0 ? "attention of " + std::to_string(attention) + " and " : "") +
         std::to_string(Blocks(plan, "recompute")) + " of " +
         std::to_string(plan.block_memory_policy.size()) + " blocks recomputed";
}

std::string PerRank(const Plan& plan) {
  return HumanBytes(TotalBytes(plan.prediction.memory_per_rank)) + " per rank";
}

/// What the rank with the least of it may use: of its GPU, or of the memory that it shares.
std::string LimitText(const JobSpec& spec, const Plan& plan, const ClusterProfile& cluster) {
  if (const int64_t limit = spec.resources.memory_per_rank_bytes; limit > 0) {
    return ", resources.memory_per_rank_bytes allows " + HumanBytes(limit);
  }
  std::string text;
  int64_t least = INT64_MAX;
  for (size_t rank = 0; rank < plan.rank_workers.size(); ++rank) {
    const std::string& id = plan.rank_workers[rank];
    const auto worker = std::find_if(cluster.workers.begin(), cluster.workers.end(),
                                     [&](const WorkerProfile& w) { return w.worker_id == id; });
    if (worker == cluster.workers.end()) continue;
    if (rank < plan.rank_devices.size()) {
      for (const DeviceSpec& device : worker->devices) {
        if (device.index != plan.rank_devices[rank] || device.memory_limit_bytes >= least) continue;
        least = device.memory_limit_bytes;
        text = ", GPU " + std::to_string(device.index) + " of " + id + " offers ";
      }
      continue;
    }
    const int64_t ranks = std::count(plan.rank_workers.begin(), plan.rank_workers.end(), id);
    if (worker->memory_limit_bytes / ranks >= least) continue;
    least = worker->memory_limit_bytes / ranks;
    text = ", worker " + id + " offers ";
  }
  return text.empty() ? "" : text + HumanBytes(least);
}

/// The best plan for `spec`, or none.
std::optional<Plan> BestOf(const JobSpec& spec, const ClusterProfile& cluster,
                           const PlanFunction& find) {
  const Result<PlanReport> report = find(spec, cluster);
  if (!report.ok() || report->candidates.empty() || !report->candidates.front().feasible) return {};
  return report->candidates.front().plan;
}

/// What would fit if one thing of the plan were another.
class SingleChanges {
 public:
  SingleChanges(const JobSpec& within, const Plan& plan, const ClusterProfile& cluster,
                const PlanFunction& find)
      : pinned_(within), plan_(plan), cluster_(cluster), find_(find) {
    const int64_t recomputed = Recomputed(plan);
    ResourceSpec& resources = pinned_.resources;
    resources.ranks = RankCount(plan.mesh);
    resources.threads_per_rank = plan.threads_per_rank;
    resources.micro_batch = plan.micro_batch;
    // A number of blocks in between cannot be asked for.
    if (recomputed == 0) resources.recompute = "none";
    if (recomputed > 0 && Blocks(plan, "recompute") == std::ssize(plan.block_memory_policy)) {
      resources.recompute = "block";
    }
  }

  std::string Text() {
    Recompute();
    MicroBatch();
    Precision();
    Ranks();
    if (!text_.empty()) return "; one change to that plan would do: " + text_;
    return "; no single change to that plan would do";
  }

 private:
  void Recompute() {
    JobSpec spec = pinned_;
    spec.resources.recompute = "auto";
    const auto found = BestOf(spec, cluster_, find_);
    if (found && Recomputed(*found) > Recomputed(plan_)) Add(RecomputedText(*found), *found);
  }
  void MicroBatch() {
    if (plan_.micro_batch == 1) return;
    JobSpec spec = pinned_;
    spec.resources.micro_batch = 0;
    const auto found = BestOf(spec, cluster_, find_);
    if (!found || found->micro_batch >= plan_.micro_batch) return;
    Add("micro-batch " + std::to_string(found->micro_batch) + " x " +
            std::to_string(found->accumulation_steps),
        *found);
  }
  void Precision() {
    // Those that round weights, too, come last.
    for (const DType masters : {DType::kF32, DType::kBF16}) {
      for (const PrecisionRecipe* recipe : AllPrecisions()) {
        const bool halves = recipe->activations == DType::kBF16 && recipe->matrices == masters;
        if (halves && recipe->name != plan_.precision) Precision(*recipe);
      }
    }
  }
  void Precision(const PrecisionRecipe& recipe) {
    JobSpec spec = pinned_;
    SetPrecision(spec, std::string(recipe.name));
    const auto found = BestOf(spec, cluster_, find_);
    if (!found || found->precision != recipe.name) return;
    Add("train.precision: " + found->precision, *found);
  }
  /// The least number that does.
  void Ranks() {
    constexpr int64_t kMost = 64;
    const int64_t ranks = RankCount(plan_.mesh);
    const int64_t most = std::min(ranks * kMost, pinned_.train.global_batch);
    for (int64_t more = 2 * ranks; more <= most; more *= 2) {
      JobSpec spec = pinned_;
      spec.resources.ranks = more;
      spec.resources.micro_batch = 0;
      const auto found = BestOf(spec, cluster_, find_);
      if (!found || RankCount(found->mesh) != more) continue;
      Add(std::to_string(more) + " ranks, micro-batch " + std::to_string(found->micro_batch),
          *found);
      return;
    }
  }

  void Add(const std::string& change, const Plan& found) {
    text_ += (text_.empty() ? "" : ", or ") + change + " (" + PerRank(found);
    const double before = plan_.prediction.step_seconds, after = found.prediction.step_seconds;
    if (before > 0 && after > 0) {
      char factor[32];
      std::snprintf(factor, sizeof(factor), ", %.2fx the step time", after / before);
      text_ += factor;
    }
    text_ += ')';
  }

  JobSpec pinned_;
  const Plan& plan_;
  const ClusterProfile& cluster_;
  const PlanFunction& find_;
  std::string text_;
};

}  // namespace

std::string MemoryAdvice(const JobSpec& spec, const Plan& plan, const ClusterProfile& cluster,
                         const PlanFunction& find) {
  std::string text = "the plan expected " + MemoryText(plan.prediction.memory_per_rank) +
                     " per rank" + LimitText(spec, plan, cluster);
  JobSpec smaller = WithLessMemory(spec, plan);
  if (smaller.resources.device == "auto") smaller.resources.device = plan.device;
  text += "; within " + HumanBytes(smaller.resources.memory_per_rank_bytes);
  const Result<PlanReport> report = find(smaller, cluster);
  if (!report.ok()) {
    text += ": " + report.status().message();
  } else if (report->candidates.empty() || !report->candidates.front().feasible) {
    text += " nothing fits";
  } else {
    const Plan& best = report->candidates.front().plan;
    text += " this would fit: " + std::to_string(RankCount(best.mesh)) + " ranks, micro-batch " +
            std::to_string(best.micro_batch) + ", " + RecomputedText(best) + ", " + PerRank(best);
  }
  return text + SingleChanges(smaller, plan, cluster, find).Text();
}

}  // namespace weft::coordinator
