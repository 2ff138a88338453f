#include "worker/engine/techniques/rewarming/rewarming_cost.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/phases.h"

namespace weft {

const TechniqueCost& SubNetworksTechniqueCost();  // before this one in the registry

namespace {

using namespace features;

bool IsRewarmed(const PhaseSpec& phase) {
  return phase.growth.rewarm_steps > 0;
}

const Feature kRewarming = {
    .name = "re-warm-up of what growth has added",
    .setting = "phases[].growth.rewarm_steps",
    .asked =
        [](const JobSpec& job) {
          return std::any_of(job.phases.begin(), job.phases.end(), IsRewarmed);
        },
    .shown =
        [](const JobSpec& job) {
          const auto phase = std::find_if(job.phases.begin(), job.phases.end(), IsRewarmed);
          return "phases[].growth.rewarm_steps " + std::to_string(phase->growth.rewarm_steps);
        }};

/// Of a side that has parts with these numbers of positions: which are beyond those of `old_parts`.
std::vector<bool> Beyond(const std::vector<int64_t>& old_parts, const std::vector<int64_t>& parts) {
  std::vector<bool> added;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int64_t at = 0; at < parts[i]; ++at) added.push_back(at >= old_parts[i]);
  }
  return added;
}

bool Any(const std::vector<bool>& added) {
  return std::find(added.begin(), added.end(), true) != added.end();
}

/// All sides but the first.
int64_t ColumnsOf(const ParameterInfo& parameter) {
  return parameter.Elements() / parameter.shape[0];
}

class RewarmingCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "rewarming"; }
  const Feature& feature() const override { return kRewarming; }

  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kRewarming, &kOffloadOptimizer, kOnDeviceAlone, "resources.offload_optimizer none"},
        {&kRewarming, &kBf16Pure, "a part of an update would be rounded to bf16 once more",
         "train.precision bf16"},
        {&kRewarming, &kOtherTensors, "growth knows the weights of the network alone", kOneOfTwo},
        {&kRewarming, &kScheduleFree, "its weights follow from its averages, however they change",
         "optimizer.name adamw"},
        {&kRewarming, &SubNetworksTechniqueCost().feature(),
         "a rank updates some rows and columns that are drawn anew", kOneOfTwo},
    };
    return rows;
  }

  // Jobs of phases that JobOfPhase has made are like this already.
  Status Check(const JobSpec& job) const override {
    const std::optional<PhaseGrowth> growth = RewarmedGrowthOf(job);
    if (!growth) return OkStatus();
    const ModelSpec &before = growth->before, &now = job.model;
    const std::pair<int64_t, int64_t> sizes[] = {{before.width, now.width},
                                                 {before.heads, now.heads},
                                                 {KvHeads(before), KvHeads(now)},
                                                 {MlpWidth(before), MlpWidth(now)}};
    for (const auto& [from, to] : sizes) {
      if (from <= to) continue;
      return InvalidError("phases[0].growth.rewarm_steps is of what was added, and a size was " +
                          std::to_string(from) + " before and is " + std::to_string(to) + " now");
    }
    return CheckRewarmSteps("phases[0].growth.rewarm_steps", growth->growth, job.train.steps);
  }

  // The weights before an update, in f32. Vectors count as if they had grown with the matrices of
  // their layer.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    constexpr int64_t kF32 = 4;
    const std::optional<PhaseGrowth> growth = RewarmedGrowthOf(job);
    if (!growth) return 0;
    const ModelSpec &before = growth->before, &now = job.model;
    bool grows = now.width > before.width;
    if (IsAttention(parameter.role) && !parameter.output_bias()) {
      grows |= QueryWidth(now) > QueryWidth(before) || KvWidth(now) > KvWidth(before);
    } else if (IsMlp(parameter.role) && !parameter.output_bias()) {
      grows |= MlpWidth(now) > MlpWidth(before);
    }
    return grows ? kF32 * parameter.Elements() : 0;
  }
};

}  // namespace

ModelSpec WithSizesOf(const ModelSpec& before, ModelSpec now) {
  now.width = before.width;
  now.heads = before.heads;
  now.kv_heads = before.kv_heads;
  now.mlp_width = before.mlp_width;
  return now;
}

std::map<std::string, AddedPositions> AddedPositionsOf(const ModelSpec& before,
                                                       const ModelSpec& now) {
  std::map<std::string, ParameterInfo> old;
  for (ParameterInfo& parameter : ParametersOf(before)) {
    std::string name = parameter.name;
    old.emplace(std::move(name), std::move(parameter));
  }
  std::map<std::string, AddedPositions> all;
  for (const ParameterInfo& parameter : ParametersOf(now)) {
    const ParameterInfo& from = old.at(parameter.name);
    AddedPositions added = {Beyond(RowPartsOf(before, from), RowPartsOf(now, parameter)),
                            Beyond({ColumnsOf(from)}, {ColumnsOf(parameter)})};
    if (Any(added.rows) || Any(added.columns)) all.emplace(parameter.name, std::move(added));
  }
  return all;
}

const TechniqueCost& RewarmingTechniqueCost() {
  static const RewarmingCost cost;
  return cost;
}

}  // namespace weft
