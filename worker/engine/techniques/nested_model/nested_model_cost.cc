#include "worker/engine/techniques/nested_model/nested_model_cost.h"

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

const TechniqueCost& Fp8TechniqueCost();
const TechniqueCost& GradientNoiseScaleTechniqueCost();
const TechniqueCost& LowRankCoreTechniqueCost();
const TechniqueCost& PeftTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();
const TechniqueCost& WeightQuantizationTechniqueCost();

namespace {

using namespace features;

const Feature kNestedModel = {
    .name = "nested networks",
    .setting = "train.nested_model",
    .asked = [](const JobSpec& job) { return job.train.nested_model.layers > 0; },
    .shown =
        [](const JobSpec& job) {
          return "train.nested_model.layers " + std::to_string(job.train.nested_model.layers);
        }};

constexpr std::string_view kMasked =
    "neurons outside of the nested network are masked in dense products";

std::span<const Refusal> Rows() {
  static const std::vector<Refusal> rows = {
      {&kNestedModel, &kTensorParallel2d, "neurons would have to be masked in a grid",
       "resources.tensor_rows 1"},
      {&kNestedModel, &kContextParallel,
       "the technique is made for ranks that have whole sequences", "data or tensor parallelism"},
      {&kNestedModel, &kPipelineParallel, kAllBlocksHere, "data or tensor parallelism"},
      {&kNestedModel, &kZeroParameters,
       "the technique is made for ranks that have whole parameters", "resources.zero_stage 2"},
      {&kNestedModel, &kOffloadParameters, kOnDeviceAlone, "resources.offload_parameters none"},
      {&kNestedModel, &kReplay, kPlainPasses, kOneOfTwo},
      {&kNestedModel, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kNestedModel, &kLocalSteps, kSummedEveryStep, kOneOfTwo},
      {&kNestedModel, &kNotPreNorm, "the norms after skipped blocks would be left",
       "model.norm_position pre"},
      {&kNestedModel, &kDistinctBlocks,
       "layers of the nested network would share blocks with those that it skips", kOneOfTwo},
      {&kNestedModel, &kExperts, kDenseLayersAlone, kOneOfTwo},
      {&kNestedModel, &Fp8TechniqueCost().feature(), kMasked, "train.precision bf16"},
      {&kNestedModel, &StochasticDepthTechniqueCost().feature(),
       "both say which layers a pass skips", kOneOfTwo},
      {&kNestedModel, &Sparse24TechniqueCost().feature(), kMasked, kOneOfTwo},
      {&kNestedModel, &StructuredMatricesTechniqueCost().feature(), kMasked, kOneOfTwo},
      {&kNestedModel, &StructuredPruningTechniqueCost().feature(),
       "both say which neurons are masked", kOneOfTwo},
      {&kNestedModel, &PruningTechniqueCost().feature(),
       "masks of weights would have to be those of both networks", kOneOfTwo},
      {&kNestedModel, &PeftTechniqueCost().feature(), kMasked, kOneOfTwo},
      {&kNestedModel, &WeightQuantizationTechniqueCost().feature(), kMasked, kOneOfTwo},
      {&kNestedModel, &LowRankCoreTechniqueCost().feature(),
       "a training has one network within the network", kOneOfTwo},
      {&kNestedModel, &GradientNoiseScaleTechniqueCost().feature(),
       "the gradients of a micro-batch are those of two networks", kOneOfTwo},
  };
  return rows;
}

class NestedModelCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "nested_model"; }

  const Feature& feature() const override { return kNestedModel; }
  std::span<const Refusal> refusals() const override { return Rows(); }

  Status Check(const JobSpec& job) const override {
    const NestedModelSpec& spec = job.train.nested_model;
    if (!Asked(job)) {
      if (spec == NestedModelSpec()) return OkStatus();
      return InvalidError(
          "train.nested_model says how a network within the network is trained, and there is none; "
          "hint: train.nested_model.layers, half of model.layers for example");
    }
    if (JointSteps(job.train) == 0 || spec.weight == 0) {
      return InvalidError(
          "train.nested_model is in no step's loss; hint: train.nested_model.weight and "
          "joint_share "
          "above 0");
    }
    // The sizes of an imported network are not known yet.
    if (!job.model.import_path.empty()) return OkStatus();
    return CheckNestedSizes(job.model, spec);
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{"nested_eval_loss_nats", "Validation loss of the network within the network."}};
  }

  std::optional<ModelSpec> SubNetworkOf(const JobSpec& job) const override {
    if (!Asked(job)) return std::nullopt;
    return NestedModelOf(job.model, job.train.nested_model);
  }

  // Neurons that are masked are computed.
  std::optional<SecondPass> SecondPassOf(const ModelSpec&, const TrainSpec& train) const override {
    if (train.nested_model.layers == 0) return std::nullopt;
    const double share = static_cast<double>(JointSteps(train)) / static_cast<double>(train.steps);
    return SecondPass{.layers = train.nested_model.layers, .share = share};
  }
};

}  // namespace

const TechniqueCost& NestedModelTechniqueCost() {
  static const NestedModelCost cost;
  return cost;
}

int64_t JointSteps(const TrainSpec& train) {
  return std::llround(train.nested_model.joint_share * static_cast<double>(train.steps));
}

Status CheckNestedSizes(const ModelSpec& model, const NestedModelSpec& spec) {
  if (spec.layers > model.layers) {
    return InvalidError("train.nested_model.layers " + std::to_string(spec.layers) +
                        " is more than model.layers " + std::to_string(model.layers));
  }
  const int64_t width = MlpWidth(model);
  if (spec.mlp_width > width) {
    return InvalidError("train.nested_model.mlp_width " + std::to_string(spec.mlp_width) +
                        " is more than the " + std::to_string(width) +
                        " neurons of the network's MLPs");
  }
  if (spec.layers < model.layers || (spec.mlp_width > 0 && spec.mlp_width < width)) {
    return OkStatus();
  }
  return InvalidError(
      "train.nested_model is the whole network; hint: fewer layers, or a smaller mlp_width");
}

ModelSpec NestedModelOf(const ModelSpec& model, const NestedModelSpec& spec) {
  ModelSpec nested = model;
  nested.layers = spec.layers;
  if (spec.mlp_width > 0) nested.mlp_width = spec.mlp_width;
  return nested;
}

}  // namespace weft
