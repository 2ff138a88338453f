#include "worker/engine/techniques/over_parameterization/over_parameterization_cost.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "common/glob.h"
#include "common/model/memory_model.h"
#include "common/model/name_patterns.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

namespace {

using namespace features;

const Feature kOverParameterization = {
    .name = "over-parameterization",
    .setting = "model.over_parameterization",
    .asked = [](const JobSpec& job) { return job.model.over_parameterization.kind != "none"; },
    .shown =
        [](const JobSpec& job) {
          return "model.over_parameterization " + job.model.over_parameterization.kind;
        }};

const Refusal kOverParameterizationRefusals[] = {
    {&kOverParameterization, &kZeroParameters, kMadeOfOthers, "resources.zero_stage 2"},
    {&kOverParameterization, &kTensorParallel, "the factors are of whole matrices",
     "data parallelism alone"},
    {&kOverParameterization, &kReplay, kPlainPasses, kOneOfTwo},
    {&kOverParameterization, &kMeshDeterminism, kOtherBits, kOneOfTwo},
    {&kOverParameterization, &kPipelineParallel, kAllBlocksHere, "data parallelism alone"},
    {&kOverParameterization, &kOffloadOptimizer, kOnDeviceAlone,
     "resources.offload_optimizer none"},
    {&kOverParameterization, &kLocalSteps, kSummedEveryStep, kOneOfTwo},
    {&kOverParameterization, &kExperts, kDenseLayersAlone, kOneOfTwo},
};

/// A trained matrix of a block that one of the patterns names, or every one when there are none.
bool IsOverParameterized(const ModelSpec& model, const ParameterInfo& parameter) {
  const OverParameterizationSpec& spec = model.over_parameterization;
  if (spec.kind == "none" || !parameter.block_matrix() || parameter.frozen) return false;
  return spec.layers.empty() || MatchesAny(spec.layers, parameter.name);
}

/// The rank of the low-rank branch of a weight.
int64_t BranchRank(int64_t out, int64_t in) {
  return std::max<int64_t>(1, std::min(out, in) / 4);
}

class OverParameterizationCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "over_parameterization"; }

  const Feature& feature() const override { return kOverParameterization; }
  std::span<const Refusal> refusals() const override { return kOverParameterizationRefusals; }

  Status Check(const JobSpec& job) const override {
    const OverParameterizationSpec& spec = job.model.over_parameterization;
    if (spec.kind != "none") {
      return CheckMatrixPatterns("model.over_parameterization.layers", spec.layers, job.model,
                                 /*trained=*/true);
    }
    if (spec.layers.empty()) return OkStatus();
    return InvalidError(
        "model.over_parameterization.layers needs a model.over_parameterization.kind; hint: "
        "linear_expansion, majority_kernels or branches");
  }

  std::vector<ParameterInfo> SourcesOf(const ModelSpec& model,
                                       const ParameterInfo& parameter) const override {
    if (!IsOverParameterized(model, parameter)) return {};
    return FactorsOf(model.over_parameterization, parameter);
  }

  bool DiffersByBlock(const ModelSpec& model) const override {
    return !model.over_parameterization.layers.empty();
  }

  void AddStepWork(const ModelShape& shape, const TrainSpec&, StepWork& work) const override {
    const OverParameterizationSpec& spec = shape.spec.over_parameterization;
    if (spec.kind == "majority_kernels") {
      const auto copies = static_cast<double>(shape.sources);
      // A multiplication and an addition for the mixture, a multiplication for its gradient.
      work.flops += 3 * copies;
      // Mixing copies reads and writes the sum for each, and writes the gradient of each.
      work.f32_numbers += 4 * copies;
      work.parameter_numbers += copies;
    }
    if (spec.kind != "linear_expansion" && spec.kind != "branches") return;
    for (const ParameterInfo& parameter : ParametersOf(shape.spec)) {
      if (!IsOverParameterized(shape.spec, parameter)) continue;
      const int64_t out = parameter.shape[0], in = parameter.shape[1];
      int64_t inner = FactorsOf(spec, parameter)[0].shape[0];
      if (spec.kind == "branches") {
        inner = BranchRank(out, in);
        const auto elements = static_cast<double>(parameter.Elements());
        const auto full = static_cast<double>(spec.copies - 1);
        // Scaling and adding up, then the gradients of a matrix and its scales; of the low-rank
        // branch scaling twice, and these gradients.
        work.flops += (5 * full - 1) * elements + 5 * static_cast<double>(inner * out);
        // Transposed, scaled and added up; transposed, scaled with sums, and transposed again.
        work.f32_numbers += (13 * full + 2) * elements;
        work.parameter_numbers += 2 * full * elements;
      }
      work.products.push_back({parameter.role, GemmPass::kForward, out, in, inner, 1});
      work.products.push_back({parameter.role, GemmPass::kInputGradient, inner, in, out, 1});
      work.products.push_back({parameter.role, GemmPass::kWeightGradient, inner, out, in, 1});
    }
  }

  // For carrying the gradient of a weight to the factors of its product: a packed copy of the
  // gradient, and f32 copies of factors that are not.
  int64_t WorkspaceBytes(const MemoryInputs& inputs) const override {
    constexpr int64_t kF32 = 4;
    const ModelShape& shape = inputs.shape;
    // The gradient, a branch and the gradient of that, transposed.
    if (shape.spec.over_parameterization.kind == "branches")
      return 3 * kF32 * shape.largest_derived;
    if (shape.spec.over_parameterization.kind != "linear_expansion") return 0;
    const bool narrow = inputs.precision->matrices != DType::kF32;
    const bool stored = inputs.OnCuda() || MultipliesStored(inputs.products);
    const int64_t packed = stored ? 0 : shape.largest_derived;
    return kF32 * (packed + (narrow ? shape.largest_source : 0));
  }
};

}  // namespace

const TechniqueCost& OverParameterizationTechniqueCost() {
  static const OverParameterizationCost cost;
  return cost;
}

std::vector<ParameterInfo> FactorsOf(const OverParameterizationSpec& spec,
                                     const ParameterInfo& weight) {
  std::vector<ParameterInfo> factors;
  const auto add = [&](const std::string& what, std::vector<int64_t> shape) {
    factors.push_back({weight, weight.name + "." + what, std::move(shape), weight.unit});
  };
  if (spec.kind == "linear_expansion") {
    const int64_t out = weight.shape[0], in = weight.shape[1];
    const auto inner = static_cast<int64_t>(
        std::llround(spec.inner_ratio * static_cast<double>(std::min(out, in))));
    add("expansion_out", {inner, out});
    add("expansion_in", {inner, in});
    for (ParameterInfo& factor : factors) factor.parts.clear();
  } else if (spec.kind == "majority_kernels") {
    for (int64_t i = 0; i < spec.copies; ++i) add("copy_" + std::to_string(i), weight.shape);
  } else if (spec.kind == "branches") {
    const int64_t out = weight.shape[0], in = weight.shape[1], rank = BranchRank(out, in);
    for (int64_t i = 0; i + 1 < spec.copies; ++i) {
      const std::string branch = "branch_" + std::to_string(i);
      add(branch, weight.shape);
      add(branch + "_scale", {out});
    }
    add("branch_out", {rank, out});
    add("branch_in", {rank, in});
    add("branch_low_rank_scale", {out});
    for (ParameterInfo& factor : factors) {
      if (factor.shape != weight.shape) factor.parts.clear();
    }
  }
  return factors;
}

}  // namespace weft
