// How the model of a phase has grown, as its job says it.
#include "common/spec/phases.h"

namespace weft {
namespace {

// Views of literals compare by length first.
constexpr std::string_view kMasked = "msg";
constexpr std::string_view kLearned = "ligo";
constexpr std::string_view kCopied = "sparkling";

bool IsAlone(const JobSpec& job, std::string_view method) {
  return job.phases.size() == 1 && job.phases[0].growth.method == method;
}

bool IsRewarmedAlone(const JobSpec& job) {
  return IsAlone(job, kCopied) && job.phases[0].growth.rewarm_steps > 0;
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
  return growth.method == kMasked || growth.method == kLearned ||
         (growth.method == kCopied && growth.rewarm_steps > 0);
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

std::optional<PhaseGrowth> RewarmedGrowthOf(const JobSpec& job) {
  if (!IsOfGrownPhase(job) || !IsRewarmedAlone(job)) return std::nullopt;
  return GrowthSaidBy(job);
}

bool IsOfGrownPhase(const JobSpec& job) {
  if (IsAlone(job, kMasked)) return true;
  // A phase of a user that leaves sizes out is checked as one.
  return (IsAlone(job, kLearned) || IsRewarmedAlone(job)) && job.phases[0].layers >= 0 &&
         job.phases[0].width > 0 && job.phases[0].heads > 0;
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

double UpdateOfAdded(const GrowthSpec& growth, int64_t step) {
  if (!IsRewarming(growth, step)) return 1;
  const auto steps = static_cast<double>(growth.rewarm_steps);
  const double part = static_cast<double>(step + 1) / steps;
  if (part <= 1) return growth.rewarm_peak * part;
  return growth.rewarm_peak + (1 - growth.rewarm_peak) * (part - 1);
}

bool IsRewarming(const GrowthSpec& growth, int64_t step) {
  return step + 1 < (growth.rewarm_peak == 1 ? 1 : 2) * growth.rewarm_steps;
}

Status CheckRewarmSteps(const std::string& field, const GrowthSpec& growth, int64_t steps) {
  if (growth.rewarm_steps == 0) return OkStatus();
  const std::string value = field + " " + std::to_string(growth.rewarm_steps);
  if (growth.method != kCopied) {
    return InvalidError(value + " is for growth.method sparkling; hint: leave it out");
  }
  if (growth.rewarm_steps <= steps) return OkStatus();
  return InvalidError(value + " must be no more than the steps of the phase, " +
                      std::to_string(steps));
}

bool IsAddedBlock(const GrowthSpec& growth, int64_t before, int64_t now, int64_t block) {
  if (growth.depth_order != "adjacent") return block >= before;
  // Each block of before has several in its place; the first of them is that block itself.
  return block == 0 ? before == 0 : block * before / now == (block - 1) * before / now;
}

}  // namespace weft
