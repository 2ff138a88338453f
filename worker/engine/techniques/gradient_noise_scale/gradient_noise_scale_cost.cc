#include "worker/engine/techniques/gradient_noise_scale/gradient_noise_scale_cost.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {
namespace {

using namespace features;

constexpr std::string_view kReplicas = "the estimate is of gradients of whole replicas";
constexpr std::string_view kDataAlone = "data parallelism alone";

const Feature kGradientNoiseScale = {
    .name = "gradient noise scale",
    .setting = "train.gradient_noise_scale",
    .asked = [](const JobSpec& job) { return job.train.gradient_noise_scale; },
    .shown = [](const JobSpec&) { return std::string("train.gradient_noise_scale"); }};

const Refusal kNoiseScaleRefusals[] = {
    {&kGradientNoiseScale, &kTensorParallel, kReplicas, kDataAlone},
    {&kGradientNoiseScale, &kContextParallel, kReplicas, kDataAlone},
    {&kGradientNoiseScale, &kPipelineParallel, kReplicas, kDataAlone},
    {&kGradientNoiseScale, &kExpertParallel, "the gradients of experts are those of several ranks",
     "resources.expert_parallel 1"},
    {&kGradientNoiseScale, &kMeshDeterminism, kOtherBits, kOneOfTwo},
    {&kGradientNoiseScale, &kLocalSteps, "the estimate is of gradients that ranks sum", kOneOfTwo},
};

class GradientNoiseScaleCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "gradient_noise_scale"; }

  const Feature& feature() const override { return kGradientNoiseScale; }
  std::span<const Refusal> refusals() const override { return kNoiseScaleRefusals; }

  bool OnlyMeasures() const override { return true; }

  Status Check(const JobSpec& job) const override {
    const ResourceSpec& resources = job.resources;
    const bool one_micro_batch =
        job.train.global_batch == 1 || (resources.ranks == 1 && resources.micro_batch > 0 &&
                                        resources.micro_batch == job.train.global_batch);
    if (!Asked(job) || !one_micro_batch) return OkStatus();
    return InvalidError(
        "train.gradient_noise_scale compares a part of the batch with the whole, and the whole of "
        "this one is a single micro-batch; hint: resources.micro_batch");
  }

  // It compares a part of the batch with the whole.
  int64_t LeastMicroBatches(const JobSpec& job) const override { return Asked(job) ? 2 : 1; }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{kNoiseScaleMetric,
             "Batch beyond which larger ones gain little; absent without an estimate."}};
  }
};

}  // namespace

const TechniqueCost& GradientNoiseScaleTechniqueCost() {
  static const GradientNoiseScaleCost cost;
  return cost;
}

}  // namespace weft
