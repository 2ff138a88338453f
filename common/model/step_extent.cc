#include "common/model/step_extent.h"

#include <algorithm>

#include "common/model/added_network_cost.h"
#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// Layers that share blocks take as many FLOPs as layers with blocks of their own.
double FlopsPerToken(const JobSpec& job, const StepExtent& extent) {
  JobSpec step = job;
  step.train.sampled_layers = 0;
  if (extent.layers != job.model.layers) {
    step.model.layers = extent.layers;
    step.model.distinct_blocks = 0;
  }
  return TrainingFlopsPerToken(ShapeOf(step), extent.length) +
         AddedNetworkFlopsPerToken(job.train, extent.length);
}

struct Sums {
  double tokens = 0;
  double flops = 0;
};

Sums SumsOf(const JobSpec& job, const std::map<StepExtent, int64_t>& extents) {
  Sums sums;
  for (const auto& [extent, count] : extents) {
    const auto tokens = static_cast<double>(extent.length * count);
    sums.tokens += tokens;
    sums.flops += tokens * FlopsPerToken(job, extent);
  }
  return sums;
}

}  // namespace

bool ExtentChanges(const JobSpec& job) {
  return std::any_of(TechniqueCosts().begin(), TechniqueCosts().end(),
                     [&](const TechniqueCost* technique) { return technique->ChangesExtent(job); });
}

StepExtent ExtentOf(const JobSpec& job, int64_t step) {
  StepExtent extent{job.model.layers, SequenceLength(job)};
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->ChangesExtent(job)) technique->SetExtent(job, step, extent);
  }
  return extent;
}

std::map<StepExtent, int64_t> ExtentsOf(const JobSpec& job, int64_t steps, int64_t samples) {
  if (!ExtentChanges(job)) return {{ExtentOf(job, 0), steps}};
  std::map<StepExtent, int64_t> extents;
  const int64_t count = std::min(steps, samples);
  for (int64_t i = 0; i < count; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(count);
    const int64_t step =
        count == steps ? i : static_cast<int64_t>(share * static_cast<double>(steps));
    ++extents[ExtentOf(job, step)];
  }
  return extents;
}

double MeanFlopsPerToken(const JobSpec& job, int64_t steps) {
  const Sums sums = SumsOf(job, ExtentsOf(job, std::max<int64_t>(steps, 1), steps));
  return sums.tokens > 0 ? sums.flops / sums.tokens : FlopsPerToken(job, ExtentOf(job, 0));
}

MeanStep MeanStepOf(const JobSpec& job) {
  constexpr int64_t kSamples = 4096;
  if (!ExtentChanges(job)) return {};
  const int64_t samples = std::min(job.train.steps, kSamples);
  const Sums mean = SumsOf(job, ExtentsOf(job, job.train.steps, kSamples));
  const StepExtent largest{DeepestModel(job.model, job.train).layers, SequenceLength(job)};
  const Sums most = SumsOf(job, {{largest, samples}});
  return {mean.tokens / most.tokens, mean.flops / most.flops};
}

}  // namespace weft
