#include "worker/engine/techniques/layer_sampling/layer_sampling_cost.h"

#include <span>
#include <string>
#include <string_view>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& PreferenceOptimizationTechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();

namespace {

using namespace features;

const Feature kLayerSampling = {
    .name = "layer sampling",
    .setting = "train.sampled_layers above model.layers",
    .asked = [](const JobSpec& job) { return job.train.sampled_layers > job.model.layers; },
    .shown =
        [](const JobSpec& job) {
          return "train.sampled_layers " + std::to_string(job.train.sampled_layers);
        },
    .of_folder = true};

class LayerSamplingCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "layer_sampling"; }
  const Feature& feature() const override { return kLayerSampling; }

  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kLayerSampling, &kPipelineParallel, "stages have layers of their own",
         "resources.pipeline_parallel 1"},
        {&kLayerSampling, &kRecomputeSegments,
         "what is recomputed at once is planned for one number of layers",
         "resources.recompute block, recompute_segment 1"},
        {&kLayerSampling, &kDistinctBlocks, "sampled layers share the blocks already",
         "model.distinct_blocks 0"},
        {&kLayerSampling, &StochasticDepthTechniqueCost().feature(),
         "branches are skipped by the number of their layer", kOneOfTwo},
        {&kLayerSampling, &PreferenceOptimizationTechniqueCost().feature(),
         "answers are scored by the network as it is evaluated", kOneOfTwo},
    };
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    // The layers of an imported network are not known yet.
    if (!job.model.import_path.empty()) return OkStatus();
    const int64_t sampled = job.train.sampled_layers, blocks = job.model.layers;
    if (sampled == 0 || (blocks > 0 && sampled % blocks == 0)) return OkStatus();
    return InvalidError("train.sampled_layers " + std::to_string(sampled) +
                        " must be a multiple of model.layers " + std::to_string(blocks) +
                        ", whose blocks serve this many layers; hint: 0 for model.layers in every "
                        "step");
  }

  bool ChangesExtent(const JobSpec& job) const override { return Asked(job); }
  void SetExtent(const JobSpec& job, int64_t step, StepExtent& extent) const override {
    extent.layers = LayersOfStep(job.model.layers, job.train.sampled_layers, job.train.seed, step);
  }

  void SetDeepest(const TrainSpec& train, ModelSpec& model) const override {
    if (train.sampled_layers <= model.layers || model.layers == 0) return;
    model.distinct_blocks = model.layers;
    model.layers = train.sampled_layers;
  }
};

}  // namespace

const TechniqueCost& LayerSamplingTechniqueCost() {
  static const LayerSamplingCost cost;
  return cost;
}

}  // namespace weft
