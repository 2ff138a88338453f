// A smaller network within the network, trained with it: its first blocks, and the first neurons of
// their MLPs (one-stop training, arXiv 2305.14066).
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/model/model_sizes.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/techniques/nested_model/nested_model_cost.h"
#include "worker/engine/techniques/nested_model/nested_products.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Skips the blocks that the nested network does without, where it is selected.
class NestedGate : public BranchGate {
 public:
  NestedGate(int64_t layers, const bool* selected) : layers_(layers), selected_(selected) {}

  BranchChoice Choose(const Context&, const GraftUse& use) const override {
    return {.computed = !*selected_ || use.layer < layers_};
  }
  bool evaluates() const override { return true; }

 private:
  int64_t layers_;
  const bool* selected_;
};

/// Masks neurons; all other products are dense.
class NestedProductsFactory : public ProductsFactory {
 public:
  NestedProductsFactory(int64_t neurons, const bool* selected)
      : neurons_(neurons), selected_(selected) {}

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    if ((*layer.parameters)[layer.weight].role != ParameterRole::kMlpUp) {
      return std::make_unique<DenseProducts>(layer);
    }
    return std::make_unique<NestedProducts>(layer, neurons_, selected_);
  }
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context& /*context*/) override { return OkStatus(); }
  Status StartPack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

 private:
  int64_t neurons_;
  const bool* selected_;
};

class NestedModel : public Technique {
 public:
  NestedModel(const ModelSpec& model, const TrainSpec& train)
      : spec_(train.nested_model),
        joint_steps_(JointSteps(train)),
        masks_neurons_(spec_.mlp_width > 0 && spec_.mlp_width < MlpWidth(model)),
        sizes_(CheckNestedSizes(model, spec_)),
        factory_(spec_.mlp_width, &selected_) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override {
    return masks_neurons_ ? &factory_ : nullptr;
  }

  void OnSite(const GraftSite& site, Grafts& grafts) override {
    if (!site.sub_layer || site.block < spec_.layers) return;
    grafts.SetGate(std::make_unique<NestedGate>(spec_.layers, &selected_));
  }

  Status OnParameters(ParameterSet&) override { return sizes_; }

  std::string_view WhyNoGraphs() const override {
    return "some passes are of the network within the network";
  }

  std::string_view SubNetworkMetric() const override { return "nested_eval_loss_nats"; }
  void SelectSubNetwork(bool selected) override { selected_ = selected; }
  double SubNetworkWeight(int64_t step) const override {
    return step < joint_steps_ ? spec_.weight : 0;
  }

 private:
  NestedModelSpec spec_;
  int64_t joint_steps_;
  bool masks_neurons_;
  Status sizes_;  ///< Of an imported network they are known here first.
  NestedProductsFactory factory_;
  bool selected_ = false;
};

}  // namespace

std::unique_ptr<Technique> NewNestedModel(const TechniqueInputs& inputs) {
  if (inputs.train.nested_model.layers == 0) return nullptr;
  return std::make_unique<NestedModel>(inputs.model, inputs.train);
}

}  // namespace weft::engine
