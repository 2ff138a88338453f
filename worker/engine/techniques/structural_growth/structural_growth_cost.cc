#include "worker/engine/techniques/structural_growth/structural_growth_cost.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& PeftTechniqueCost();
const TechniqueCost& WeightQuantizationTechniqueCost();
const TechniqueCost& NestedModelTechniqueCost();

namespace {

using namespace features;

const Feature kStructuralGrowth = {
    .name = "masked structural growth",
    .setting = "phases[].growth.method msg",
    .asked =
        [](const JobSpec& job) {
          return std::any_of(job.phases.begin(), job.phases.end(),
                             [](const PhaseSpec& phase) { return phase.growth.method == "msg"; });
        },
    .shown = [](const JobSpec&) { return std::string("phases[].growth.method msg"); }};

constexpr std::string_view kPlainProducts = "masked products are dense ones";
constexpr std::string_view kOtherGrowth = "growth.method stack or fpi";

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kStructuralGrowth, &kReplay, kPlainPasses, kOneOfTwo},
      {&kStructuralGrowth, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kStructuralGrowth, &kTimedRounds, "ranks would evaluate at masks of different steps",
       "train.local_steps in place of local_round_seconds"},
      {&kStructuralGrowth, &kTensorParallel2d, "norms weigh the columns of whole rows",
       "resources.tensor_rows 1"},
      {&kStructuralGrowth, &kExperts, kDenseLayersAlone, kOtherGrowth},
      {&kStructuralGrowth, &kDistinctBlocks, "a block would be new in some of its layers alone",
       "model.distinct_blocks 0"},
  };
  for (const TechniqueCost* technique :
       {&Sparse24TechniqueCost(), &PruningTechniqueCost(), &OverParameterizationTechniqueCost(),
        &StructuredMatricesTechniqueCost(), &StructuredPruningTechniqueCost(), &PeftTechniqueCost(),
        &WeightQuantizationTechniqueCost(), &NestedModelTechniqueCost()}) {
    rows.push_back({&kStructuralGrowth, &technique->feature(), kPlainProducts, kOtherGrowth});
  }
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() == nullptr) continue;
    rows.push_back(
        {&kStructuralGrowth, &technique->feature(), kPlainProducts, "train.precision bf16"});
  }
  return rows;
}

class StructuralGrowthCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "structural_growth"; }
  const Feature& feature() const override { return kStructuralGrowth; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  // Masked inputs of products, forward and again for the gradient of the weight. The gradient of a
  // masked branch is not that of the stream; nor is that of a block which passes on a share.
  JobWorkspace WorkspaceOf(const JobSpec& job) const override {
    const std::optional<MaskedGrowth> growth = MaskedGrowthOf(job);
    if (!growth) return {};
    const AddedParts added(growth->before, job.model);
    const int64_t ranks = job.resources.tensor_parallel;
    const int64_t attended = QueryWidth(job.model) / ranks, inner = MlpWidth(job.model) / ranks;
    JobWorkspace workspace;
    if (added.heads) workspace.attention = {.forward = attended, .backward = attended};
    if (added.neurons) workspace.mlp = {.forward = inner, .backward = inner};
    workspace.changes_branches = added.columns;
    workspace.gradients = added.blocks ? 1 : 0;
    return workspace;
  }

  // Jobs of phases that JobOfPhase has made are like this already.
  Status Check(const JobSpec& job) const override {
    const std::optional<MaskedGrowth> growth = MaskedGrowthOf(job);
    if (!growth) return OkStatus();
    const ModelSpec &before = growth->before, &now = job.model;
    if (before.layers < 0 || before.width < 1 || before.heads < 1) {
      return InvalidError(
          "phases[0].growth.method msg: there is no phase before the first one to grow from");
    }
    const std::pair<int64_t, int64_t> sizes[] = {{before.layers, now.layers},
                                                 {before.width, now.width},
                                                 {before.heads, now.heads},
                                                 {KvHeads(before), KvHeads(now)},
                                                 {MlpWidth(before), MlpWidth(now)}};
    for (const auto& [from, to] : sizes) {
      if (from <= to) continue;
      return InvalidError("phases[0].growth.method msg makes no size smaller: " +
                          std::to_string(from) + " before and " + std::to_string(to) + " now");
    }
    if (growth->growth.ramp_steps >= 1 && growth->growth.ramp_steps <= job.train.steps) {
      return OkStatus();
    }
    return InvalidError("phases[0].growth.ramp_steps " + std::to_string(growth->growth.ramp_steps) +
                        " must be from 1 to the steps of the phase, " +
                        std::to_string(job.train.steps));
  }
};

}  // namespace

AddedParts::AddedParts(const ModelSpec& before, const ModelSpec& now)
    : columns(now.width > before.width),
      heads(QueryWidth(now) > QueryWidth(before)),
      neurons(MlpWidth(now) > MlpWidth(before)),
      blocks(now.layers > before.layers) {}

const TechniqueCost& StructuralGrowthTechniqueCost() {
  static const StructuralGrowthCost cost;
  return cost;
}

}  // namespace weft
