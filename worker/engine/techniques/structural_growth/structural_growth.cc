#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "common/model/model_sizes.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/structural_growth/masked_products.h"
#include "worker/engine/techniques/structural_growth/structural_growth_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Makes the products that read columns of which some were added.
class MaskedProductsFactory : public ProductsFactory {
 public:
  MaskedProductsFactory(const ColumnMask* heads, const ColumnMask* neurons)
      : heads_(heads), neurons_(neurons) {}

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    const ParameterRole role = (*layer.parameters)[layer.weight].role;
    const ColumnMask* const mask = role == ParameterRole::kAttentionOutput ? heads_
                                   : role == ParameterRole::kMlpDown       ? neurons_
                                                                           : nullptr;
    if (mask == nullptr) return std::make_unique<DenseProducts>(layer);
    return std::make_unique<MaskedProducts>(layer, mask);
  }
  void SetStage(const std::vector<Shard::Range>&, int64_t) override {}
  Status Allocate(Context&) override { return OkStatus(); }
  Status StartPack(Context&) override { return OkStatus(); }

 private:
  const ColumnMask* heads_;    ///< Or null.
  const ColumnMask* neurons_;  ///< Or null.
};

/// Masked structural growth (Yao et al. 2024, arXiv 2305.02869). The network computes what it did
/// before growth, and more and more of what was added, whatever numbers that begins as:
/// - columns of the residual stream are multiplied by the mask wherever something is written into
///   the stream, and in the statistics and results of norms;
/// - heads and neurons where the product behind them reads them;
/// - blocks pass on a share of what they compute.
/// Evaluations between two steps have the masks of the second one.
class StructuralGrowth : public Technique {
 public:
  StructuralGrowth(const ModelSpec& model, const MaskedGrowth& growth)
      : growth_(growth),
        layers_(model.layers),
        added_(growth.before, model),
        columns_(growth.before.width, model.width),
        heads_(QueryWidth(growth.before), QueryWidth(model)),
        neurons_(MlpWidth(growth.before), MlpWidth(model)),
        products_(added_.heads ? &heads_ : nullptr, added_.neurons ? &neurons_ : nullptr) {}

  ProductsFactory* BlockProducts() override {
    return added_.heads || added_.neurons ? &products_ : nullptr;
  }

  const ColumnMask* StreamMask() override { return added_.columns ? &columns_ : nullptr; }

  void OnSite(const GraftSite& site, Grafts& grafts) override {
    if (added_.columns) {
      grafts.Put(site.sub_layer ? GraftPlace::kResidualBranch : GraftPlace::kEmbedding,
                 std::make_unique<MaskColumns>(&columns_));
    }
    if (site.sub_layer == SubLayer::kMlp &&
        IsAddedBlock(growth_.growth, growth_.before.layers, layers_, site.block)) {
      grafts.SetBlockShare(&share_);
    }
  }

  std::string_view WhyNoGraphs() const override { return "the masks of growth rise on the host"; }

  bool WeightsDependOnStep() const override { return share_ < 1; }

  Status BeforeForward(Context& context, std::optional<int64_t> step) override {
    if (step) next_step_ = *step + 1;
    const double share = ShareOfGrowth(growth_.growth, step.value_or(next_step_));
    share_ = static_cast<float>(share);
    for (ColumnMask* mask : {&columns_, &heads_, &neurons_}) {
      WEFT_RETURN_IF_ERROR(mask->SetShare(context, share_));
    }
    return OkStatus();
  }

  void OnRestored(int64_t steps) override {
    next_step_ = steps;
    share_ = 0;  // until it is asked for
  }

 private:
  MaskedGrowth growth_;
  int64_t layers_;
  AddedParts added_;
  ColumnMask columns_;
  ColumnMask heads_;
  ColumnMask neurons_;
  MaskedProductsFactory products_;
  float share_ = 0;
  int64_t next_step_ = 0;
};

}  // namespace

std::unique_ptr<Technique> NewStructuralGrowth(const TechniqueInputs& inputs) {
  if (inputs.growth == nullptr) return nullptr;
  return std::make_unique<StructuralGrowth>(inputs.model, *inputs.growth);
}

}  // namespace weft::engine
