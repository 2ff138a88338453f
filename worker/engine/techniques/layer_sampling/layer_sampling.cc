#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "worker/engine/techniques/layer_sampling/elastic_network.h"
#include "worker/engine/techniques/layer_sampling/layer_sampling_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class LayerSampling : public Technique {
 public:
  explicit LayerSampling(LayersOfPass layers) : layers_(std::move(layers)) {}

  LayersOfPass LayersOfPasses() override { return layers_; }

  std::string_view WhyNoGraphs() const override {
    return "how many layers a step runs is drawn on the host";
  }

 private:
  LayersOfPass layers_;
};

}  // namespace

std::unique_ptr<Technique> NewLayerSampling(const TechniqueInputs& inputs) {
  const int64_t blocks = inputs.model.layers, most = inputs.train.sampled_layers;
  if (const ElasticNetwork* elastic = inputs.elastic) {
    return std::make_unique<LayerSampling>([elastic, blocks](int64_t step, bool trains) {
      if (trains) return elastic->LayersOfStep(step);
      return elastic->evaluated > 0 ? elastic->evaluated : blocks;
    });
  }
  if (most <= blocks) return nullptr;
  return std::make_unique<LayerSampling>(
      [blocks, most, seed = inputs.train.seed](int64_t step, bool trains) {
        return trains ? LayersOfStep(blocks, most, seed, step) : blocks;
      });
}

}  // namespace weft::engine
