#include "worker/engine/techniques/value_learning/value_learning_cost.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/spec_defaults.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& Fp8TechniqueCost();
const TechniqueCost& LowRankCoreTechniqueCost();
const TechniqueCost& NestedModelTechniqueCost();
const TechniqueCost& PeftTechniqueCost();
const TechniqueCost& PreferenceOptimizationTechniqueCost();
const TechniqueCost& StructuralGrowthTechniqueCost();

namespace {

using namespace features;

const Feature kValueLearning = {
    .name = "value learning",
    .setting = "train.value_learning",
    .asked = [](const JobSpec& job) { return !job.train.value_learning.base.import_path.empty(); },
    .shown =
        [](const JobSpec& job) {
          return "train.value_learning.base.import_path " +
                 job.train.value_learning.base.import_path;
        }};

constexpr std::string_view kUndivided =
    "the other network would have to be divided as the model is";
constexpr std::string_view kTwoNetworks =
    "the logits of the other network would be added to those of two networks";

std::span<const Refusal> Rows() {
  static const std::vector<Refusal> rows = {
      {&kValueLearning, &kContextParallel, kUndivided, "resources.context_parallel 1"},
      {&kValueLearning, &kPipelineParallel, kUndivided, "resources.pipeline_parallel 1"},
      {&kValueLearning, &kOffloadOptimizer, "the other network would have to be offloaded, too",
       kOneOfTwo},
      {&kValueLearning, &kLocalSteps, kSummedEveryStep, kOneOfTwo},
      {&kValueLearning, &kReplay, "logits of the check would count in the penalty that is reported",
       kOneOfTwo},
      {&kValueLearning, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kValueLearning, &kPhases, "the other network would have to grow with the model",
       "a job for each network"},
      {&kValueLearning, &kExperts, "its penalty is not tested with the losses of routers",
       kOneOfTwo},
      {&kValueLearning, &kEncoder, "logits are added that predict the next token",
       "model.family gpt2 or llama"},
      {&kValueLearning, &Fp8TechniqueCost().feature(),
       "the other network would have to be computed in FP8, too", "train.precision bf16"},
      {&kValueLearning, &PeftTechniqueCost().feature(),
       "adapters change the network itself, so that none need be added", kOneOfTwo},
      {&kValueLearning, &LowRankCoreTechniqueCost().feature(), kTwoNetworks, kOneOfTwo},
      {&kValueLearning, &NestedModelTechniqueCost().feature(), kTwoNetworks, kOneOfTwo},
      {&kValueLearning, &PreferenceOptimizationTechniqueCost().feature(),
       "answers would have to be judged by the sum of two logits", kOneOfTwo},
      {&kValueLearning, &StructuralGrowthTechniqueCost().feature(),
       "the other network would have to grow with the model", kOneOfTwo},
  };
  return rows;
}

class ValueLearningCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "value_learning"; }

  const Feature& feature() const override { return kValueLearning; }
  std::span<const Refusal> refusals() const override { return Rows(); }

  Status Check(const JobSpec& job) const override {
    const ValueLearningSpec& spec = job.train.value_learning;
    if (!Asked(job)) {
      if (HasDefaults(spec)) return OkStatus();
      return InvalidError(
          "train.value_learning has no network to add logits to; hint: the Hugging Face folder of "
          "one as train.value_learning.base.import_path, which says all else of it");
    }
    // An imported network starts from its own classifier.
    if (!job.model.import_path.empty() || job.model.untied_classifier) return OkStatus();
    return InvalidError(
        "with train.value_learning.base the model's classifier starts at zero, so that the sum is "
        "that network at first, and a classifier that is the token embedding cannot be zero; "
        "hint: model.untied_classifier true");
  }

  std::optional<AddedNetwork> AddedNetworkOf(const TrainSpec& train) const override {
    const ModelSpec& base = train.value_learning.base;
    if (base.import_path.empty()) return std::nullopt;
    return AddedNetwork{"train.value_learning.base", &base};
  }
  void SetAddedNetwork(TrainSpec& train, const ModelSpec& network) const override {
    if (AddedNetworkOf(train)) train.value_learning.base = network;
  }
  bool KeepsOwnLogits(const TrainSpec& train) const override {
    return AddedNetworkOf(train).has_value() && train.value_learning.logit_penalty > 0;
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{kLogitPenaltyMetric,
             "train.value_learning.logit_penalty times the mean square of the network's own logits "
             "in a step, before the update."}};
  }
};

}  // namespace

const TechniqueCost& ValueLearningTechniqueCost() {
  static const ValueLearningCost cost;
  return cost;
}

}  // namespace weft
