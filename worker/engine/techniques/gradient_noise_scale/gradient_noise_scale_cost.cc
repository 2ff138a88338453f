#include "worker/engine/techniques/gradient_noise_scale/gradient_noise_scale_cost.h"

#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"

namespace weft {
namespace {

class GradientNoiseScaleCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "gradient_noise_scale"; }

  bool Asked(const JobSpec& job) const override { return job.train.gradient_noise_scale; }

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
