#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "worker/engine/techniques/layer_sampling/layer_sampling_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class LayerSampling : public Technique {
 public:
  LayerSampling(const ModelSpec& model, const TrainSpec& train)
      : blocks_(model.layers), layers_(train.sampled_layers), seed_(train.seed) {}

  std::function<int64_t(int64_t step)> LayersOfSteps() override {
    return [blocks = blocks_, layers = layers_, seed = seed_](int64_t step) {
      return LayersOfStep(blocks, layers, seed, step);
    };
  }

  std::string_view WhyNoGraphs() const override {
    return "how many layers a step runs is drawn on the host";
  }

 private:
  int64_t blocks_;
  int64_t layers_;
  int64_t seed_;
};

}  // namespace

std::unique_ptr<Technique> NewLayerSampling(const TechniqueInputs& inputs) {
  if (inputs.train.sampled_layers <= inputs.model.layers) return nullptr;
  return std::make_unique<LayerSampling>(inputs.model, inputs.train);
}

}  // namespace weft::engine
