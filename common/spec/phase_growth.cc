// How the model of a phase has grown, as its job says it.
#include "common/spec/phases.h"

namespace weft {
namespace {

// Views of literals compare by length first.
constexpr std::string_view kMasked = "msg";
constexpr std::string_view kLearned = "ligo";

bool IsAlone(const JobSpec& job, std::string_view method) {
  return job.phases.size() == 1 && job.phases[0].growth.method == method;
}

PhaseGrowth GrowthSaidBy(const JobSpec& job) {
  const PhaseSpec& from = job.phases[0];
  PhaseGrowth growth{job.model, from.growth};
  growth.before.layers = from.layers;
  growth.before.width = from.width;
  growth.before.heads = from.heads;
  growth.before.kv_heads = from.kv_heads;
  growth.before.mlp_width = from.mlp_width;
  return growth;
}

}  // namespace

bool SaysWhatItGrewFrom(const GrowthSpec& growth) {
  return growth.method == kMasked || growth.method == kLearned;
}

void SetPhaseGrowth(const PhaseGrowth& growth, JobSpec& job) {
  PhaseSpec grown;
  grown.steps = job.train.steps;
  grown.layers = growth.before.layers;
  grown.width = growth.before.width;
  grown.heads = growth.before.heads;
  grown.kv_heads = growth.before.kv_heads;
  grown.mlp_width = growth.before.mlp_width;
  grown.growth = growth.growth;
  job.phases = {grown};
}

std::optional<MaskedGrowth> MaskedGrowthOf(const JobSpec& job) {
  if (!IsAlone(job, kMasked)) return std::nullopt;
  return GrowthSaidBy(job);
}

std::optional<PhaseGrowth> LearnedGrowthOf(const JobSpec& job) {
  if (!IsOfGrownPhase(job) || !IsAlone(job, kLearned)) return std::nullopt;
  return GrowthSaidBy(job);
}

bool IsOfGrownPhase(const JobSpec& job) {
  if (IsAlone(job, kMasked)) return true;
  // A phase of a user that leaves sizes out is checked as one.
  return IsAlone(job, kLearned) && job.phases[0].layers >= 0 && job.phases[0].width > 0 &&
         job.phases[0].heads > 0;
}

std::string_view OptimizerStateOf(const GrowthSpec& growth) {
  if (growth.optimizer_state != "auto") return growth.optimizer_state;
  if (growth.method == "sparkling") return "asymmetric";
  return growth.method == "fpi" || growth.method == "msg" ? "kept" : "new";
}

double ShareOfGrowth(const GrowthSpec& growth, int64_t step) {
  if (step >= growth.ramp_steps) return 1;
  return static_cast<double>(step) / static_cast<double>(growth.ramp_steps);
}

bool IsAddedBlock(const GrowthSpec& growth, int64_t before, int64_t now, int64_t block) {
  if (growth.depth_order != "adjacent") return block >= before;
  // Each block of before has several in its place; the first of them is that block itself.
  return block == 0 ? before == 0 : block * before / now == (block - 1) * before / now;
}

}  // namespace weft
