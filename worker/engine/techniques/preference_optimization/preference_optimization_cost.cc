#include "worker/engine/techniques/preference_optimization/preference_optimization_cost.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/features.h"
#include "common/spec/instruction_data.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& Fp8TechniqueCost();
const TechniqueCost& GradientNoiseScaleTechniqueCost();
const Feature& AdapterDropoutFeature();
const Feature& JointAdaptersFeature();
const Feature& VirtualTokensFeature();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();

namespace {

using namespace features;

const Feature kPreference = {
    .name = "preference optimisation",
    .setting = "train.preference.method dpo",
    .asked = [](const JobSpec& job) { return job.train.preference.method != "none"; },
    .shown =
        [](const JobSpec& job) {
          return "train.preference.method " + job.train.preference.method;
        }};

constexpr std::string_view kOtherNetwork =
    "answers would be judged by another network than the one that is differentiated";

class PreferenceOptimizationCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "preference_optimization"; }

  const Feature& feature() const override { return kPreference; }
  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kPreference, &kPipelineParallel,
         "a batch is judged as a whole before its gradients are computed", "other kinds of ranks"},
        {&kPreference, &kReplay, kPlainPasses, kOneOfTwo},
        {&kPreference, &kMeshDeterminism, kOtherBits, kOneOfTwo},
        {&kPreference, &kLocalSteps, "a batch is judged as a whole, by all ranks", kOneOfTwo},
        {&kPreference, &kExperts, "balancing losses and capacities are those of tokens",
         "model.experts 0"},
        {&kPreference, &kDropout, kOtherNetwork, "model.dropout 0"},
        {&kPreference, &kAttentionDropout, kOtherNetwork, "model.attention_dropout 0"},
        {&kPreference, &AdapterDropoutFeature(), kOtherNetwork, "model.peft.dropout 0"},
        {&kPreference, &StochasticDepthTechniqueCost().feature(), kOtherNetwork, kOneOfTwo},
        {&kPreference, &Fp8TechniqueCost().feature(), kOtherNetwork, "train.precision bf16"},
        {&kPreference, &Sparse24TechniqueCost().feature(), kOtherNetwork, kOneOfTwo},
        {&kPreference, &JointAdaptersFeature(),
         "pairs would have to be judged for each adapter by itself", kOneOfTwo},
        {&kPreference, &VirtualTokensFeature(),
         "the network at the start is the reference, and virtual tokens change it before they have "
         "learnt anything",
         "model.peft.method lora"},
        {&kPreference, &GradientNoiseScaleTechniqueCost().feature(),
         "a micro-batch may hold half a pair", kOneOfTwo},
    };
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const bool pairs = job.data.format == kPreferenceFormat;
    if (!Asked(job) && pairs) {
      return InvalidError(
          "data.format preference has two answers to each prompt, and train.preference.method none "
          "does not say what to learn of them; hint: train.preference.method dpo");
    }
    if (!Asked(job)) return OkStatus();
    if (job.data.train.empty()) return OkStatus();  // a network by itself has no data
    const std::string method = feature().shown(job);
    if (!pairs) {
      return InvalidError(method + " learns from pairs of answers, which data.format " +
                          job.data.format + " does not have; hint: data.format preference");
    }
    if (!job.data.batching.starts_with("pad_")) {
      return InvalidError(method + " needs one answer a sequence, not data.batching " +
                          job.data.batching + "; hint: pad_dynamic, pad_uniform or pad_fixed");
    }
    const TrainSpec& train = job.train;
    for (const auto& [field, sequences] :
         {std::pair{"train.global_batch", train.global_batch},
          std::pair{"train.batch_warmup_start", BatchSchedule(train).unit()},
          std::pair{"train.eval_sequences", train.eval_sequences}}) {
      if (sequences % 2 == 0) continue;
      return InvalidError(std::string(field) + " " + std::to_string(sequences) +
                          " is odd, and the two answers of a pair are two sequences; hint: " +
                          std::to_string(sequences + 1));
    }
    return OkStatus();
  }

  // The answers of a batch are judged before any gradient is computed.
  int64_t ScoringPasses(const TrainSpec& train) const override {
    return train.preference.method == "none" ? 0 : 1;
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {
        {kChosenRewardMetric,
         "Mean over the pairs of a step of the reward of the chosen answer, before the update."},
        {kRejectedRewardMetric, "The same of the rejected answer."},
        {kRewardMarginMetric, "Their difference."},
        {kRewardAccuracyMetric,
         "Share of the pairs of a step whose chosen answer has the larger reward."}};
  }
};

}  // namespace

const TechniqueCost& PreferenceOptimizationTechniqueCost() {
  static const PreferenceOptimizationCost cost;
  return cost;
}

}  // namespace weft
