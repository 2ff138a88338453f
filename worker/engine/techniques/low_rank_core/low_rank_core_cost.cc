#include "worker/engine/techniques/low_rank_core/low_rank_core_cost.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/glob.h"
#include "common/model/memory_model.h"
#include "common/model/name_patterns.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& PeftTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();
const TechniqueCost& WeightQuantizationTechniqueCost();

namespace {

using namespace features;

const Feature kLowRankCore = {
    .name = "low-rank cores",
    .setting = "model.low_rank_core",
    .asked = [](const JobSpec& job) { return job.model.low_rank_core.rank > 0; },
    .shown =
        [](const JobSpec& job) {
          return "model.low_rank_core.rank " + std::to_string(job.model.low_rank_core.rank);
        }};

const Feature kSettings[] = {
    {.name = "low-rank cores of some matrices",
     .setting = "model.low_rank_core.layers",
     .asked =
         [](const JobSpec& job) {
           const LowRankCoreSpec& spec = job.model.low_rank_core;
           return spec.rank > 0 && !spec.layers.empty();
         },
     .shown = [](const JobSpec&) { return std::string("model.low_rank_core.layers"); }}};
const Feature& kSomeCores = kSettings[0];

constexpr std::string_view kHeldStill = "steps that train the core hold the rest of weights still";

constexpr std::string_view kMasksOfFactors =
    "weights are made of factors, which masks would have to follow";

std::span<const Refusal> Rows() {
  static const std::vector<Refusal> rows = {
      {&kLowRankCore, &kZeroParameters, kMadeOfOthers, "resources.zero_stage 2"},
      {&kLowRankCore, &kTensorParallel2d, "the factors would have to be cut on both sides",
       "resources.tensor_rows 1"},
      {&kLowRankCore, &kOffloadOptimizer, kHeldStill, "resources.offload_optimizer none"},
      {&kLowRankCore, &kWholeTensorOptimizer, kHeldStill, "optimizer.name adamw"},
      {&kLowRankCore, &kScheduleFree, kHeldStill, "optimizer.name adamw"},
      {&kLowRankCore, &kReplay, kPlainPasses, kOneOfTwo},
      {&kLowRankCore, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kLowRankCore, &kLocalSteps, kSummedEveryStep, kOneOfTwo},
      {&kLowRankCore, &kExperts, kDenseLayersAlone, kOneOfTwo},
      {&kLowRankCore, &OverParameterizationTechniqueCost().feature(),
       "a weight is made of one kind of factors", kOneOfTwo},
      {&kLowRankCore, &Sparse24TechniqueCost().feature(), kMasksOfFactors, kOneOfTwo},
      {&kLowRankCore, &StructuredMatricesTechniqueCost().feature(),
       "a structured matrix is in the place of the weight", kOneOfTwo},
      {&kLowRankCore, &StructuredPruningTechniqueCost().feature(), kMasksOfFactors, kOneOfTwo},
      {&kLowRankCore, &PruningTechniqueCost().feature(), kMasksOfFactors, kOneOfTwo},
      {&kLowRankCore, &PeftTechniqueCost().feature(), "adapters freeze the weights", kOneOfTwo},
      {&kLowRankCore, &WeightQuantizationTechniqueCost().feature(),
       "quantised weights are frozen, and the core is trained with the others", kOneOfTwo},
      {&kSomeCores, &kPipelineParallel, "what stages take is counted for alike blocks",
       "a core of each matrix"},
  };
  return rows;
}

/// A trained matrix of a block that one of the patterns names, or every one when there are none.
bool HasCore(const ModelSpec& model, const ParameterInfo& parameter) {
  const LowRankCoreSpec& spec = model.low_rank_core;
  if (spec.rank == 0 || !parameter.block_matrix() || parameter.frozen) return false;
  return spec.layers.empty() || MatchesAny(spec.layers, parameter.name);
}

Status CheckRanks(const ModelSpec& model) {
  for (const ParameterInfo& weight : PlainParametersOf(model)) {
    if (HasCore(model, weight)) WEFT_RETURN_IF_ERROR(CheckCoreRank(model.low_rank_core, weight));
  }
  return OkStatus();
}

class LowRankCoreCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "low_rank_core"; }

  const Feature& feature() const override { return kLowRankCore; }
  std::span<const Feature> settings() const override { return kSettings; }
  std::span<const Refusal> refusals() const override { return Rows(); }

  Status Check(const JobSpec& job) const override {
    const LowRankCoreSpec& spec = job.model.low_rank_core;
    if (spec.rank > 0) {
      WEFT_RETURN_IF_ERROR(CheckMatrixPatterns("model.low_rank_core.layers", spec.layers, job.model,
                                               /*trained=*/true));
      // The sizes of an imported network are not known yet.
      return job.model.import_path.empty() ? CheckRanks(ShapeOf(job).spec) : OkStatus();
    }
    if (spec == LowRankCoreSpec()) return OkStatus();
    return InvalidError(
        "model.low_rank_core needs a rank; hint: model.low_rank_core.rank, a quarter of the width "
        "for example");
  }

  std::vector<ParameterInfo> SourcesOf(const ModelSpec& model,
                                       const ParameterInfo& parameter) const override {
    if (!HasCore(model, parameter)) return {};
    return CoreTensorsOf(model.low_rank_core, parameter);
  }

  bool DiffersByBlock(const ModelSpec& model) const override {
    return model.low_rank_core.rank > 0 && !model.low_rank_core.layers.empty();
  }

  void AddStepWork(const ModelShape& shape, const TrainSpec&, StepWork& work) const override {
    const int64_t rank = shape.spec.low_rank_core.rank;
    if (rank == 0) return;  // planners ask often, and there may be many parameters
    for (const ParameterInfo& parameter : OfRank(shape)) {
      if (!HasCore(shape.spec, parameter)) continue;
      const int64_t out = parameter.shape[0], in = parameter.shape[1];
      work.products.push_back({parameter.role, GemmPass::kForward, out, in, rank, 1});
      work.products.push_back({parameter.role, GemmPass::kInputGradient, rank, in, out, 1});
      work.products.push_back({parameter.role, GemmPass::kWeightGradient, rank, out, in, 1});
      // The rest is copied to the weight, and the gradient of the weight to that of the rest.
      work.f32_numbers += 3 * static_cast<double>(parameter.Elements());
      work.parameter_numbers += static_cast<double>(parameter.Elements());
    }
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{"core_eval_loss_nats", "Validation loss of the network of the low-rank cores alone."}};
  }

  std::optional<ModelSpec> SubNetworkOf(const JobSpec& job) const override {
    if (job.model.low_rank_core.rank == 0) return std::nullopt;
    ModelSpec core = job.model;
    core.low_rank_core = {};
    return core;
  }

  // For carrying the gradient of a weight to its factors: a packed copy of it, and an f32 copy of a
  // factor that is not.
  int64_t WorkspaceBytes(const MemoryInputs& inputs) const override {
    constexpr int64_t kF32 = 4;
    const ModelShape& shape = inputs.shape;
    const int64_t rank = shape.spec.low_rank_core.rank;
    if (rank == 0) return 0;
    int64_t longest = 0;
    for (const ParameterInfo& parameter : OfRank(shape)) {
      if (!HasCore(shape.spec, parameter)) continue;
      longest = std::max({longest, parameter.shape[0], parameter.shape[1]});
    }
    const bool narrow = inputs.precision->matrices != DType::kF32;
    const bool stored = inputs.OnCuda() || MultipliesStored(inputs.products);
    return kF32 * ((stored ? 0 : shape.largest_derived) + (narrow ? rank * longest : 0));
  }

 private:
  /// The parameters of a tensor-parallel rank.
  static std::vector<ParameterInfo> OfRank(const ModelShape& shape) {
    return ParametersOfRank(shape.spec, shape.tensor, shape.tensor_rows);
  }
};

}  // namespace

const TechniqueCost& LowRankCoreTechniqueCost() {
  static const LowRankCoreCost cost;
  return cost;
}

Status CheckCoreRank(const LowRankCoreSpec& spec, const ParameterInfo& weight) {
  const int64_t smaller = std::min(weight.shape[0], weight.shape[1]);
  if (spec.rank < smaller) return OkStatus();
  return InvalidError("model.low_rank_core.rank " + std::to_string(spec.rank) +
                      " is no low rank for " + weight.name + " [" +
                      std::to_string(weight.shape[0]) + ", " + std::to_string(weight.shape[1]) +
                      "]; hint: at most " + std::to_string(smaller - 1) +
                      ", or other model.low_rank_core.layers");
}

std::vector<ParameterInfo> CoreTensorsOf(const LowRankCoreSpec& spec, const ParameterInfo& weight) {
  std::vector<ParameterInfo> tensors;
  const auto add = [&](const std::string& what, std::vector<int64_t> shape) {
    tensors.push_back({weight, weight.name + "." + what, std::move(shape), weight.unit});
  };
  add("core_out", {spec.rank, weight.shape[0]});
  add("core_in", {spec.rank, weight.shape[1]});
  for (ParameterInfo& factor : tensors) factor.parts.clear();
  // Tensor-parallel ranks have rows of a weight, or columns of one that ends a sub-layer.
  tensors[EndsSubLayer(weight.role) ? 0 : 1].of_whole_weight = true;
  add("rest", weight.shape);
  return tensors;
}

}  // namespace weft
