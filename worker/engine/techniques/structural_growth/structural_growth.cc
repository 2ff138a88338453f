#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/model/model_sizes.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/masked_products.h"
#include "worker/engine/techniques/structural_growth/structural_growth_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Makes the products that read added columns, and owns their masks. Each tensor-parallel rank has
/// some of these columns, in all layers the same.
class MaskedProductsFactory : public ProductsFactory {
 public:
  /// Before growth products read this many columns of heads and neurons; none: all are of then.
  MaskedProductsFactory(std::optional<int64_t> heads, std::optional<int64_t> neurons)
      : heads_{heads, {}}, neurons_{neurons, {}} {}

  bool masks() const { return heads_.kept || neurons_.kept; }

  Status SetShare(Context& context, float share) {
    for (const Inputs* inputs : {&heads_, &neurons_}) {
      if (inputs->mask) WEFT_RETURN_IF_ERROR(inputs->mask->SetShare(context, share));
    }
    return OkStatus();
  }

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    const ParameterRole role = (*layer.parameters)[layer.weight].role;
    Inputs* const inputs = role == ParameterRole::kAttentionOutput ? &heads_
                           : role == ParameterRole::kMlpDown       ? &neurons_
                                                                   : nullptr;
    if (inputs == nullptr || !inputs->kept) return std::make_unique<DenseProducts>(layer);
    if (!inputs->mask) {
      const int64_t first = layer.inputs.whole() ? 0 : layer.inputs.ranges.front().begin;
      const int64_t kept = std::clamp<int64_t>(*inputs->kept - first, 0, layer.in_features);
      inputs->mask = std::make_unique<ColumnMask>(kept, layer.in_features);
    }
    return std::make_unique<MaskedProducts>(layer, inputs->mask.get());
  }
  void SetStage(const std::vector<Shard::Range>&, int64_t) override {}
  Status Allocate(Context&) override { return OkStatus(); }
  Status StartPack(Context&, Repack) override { return OkStatus(); }

 private:
  /// What products behind heads, or neurons, read.
  struct Inputs {
    std::optional<int64_t> kept;       ///< Columns of before growth.
    std::unique_ptr<ColumnMask> mask;  ///< Of those that are here, once there is a layer.
  };

  Inputs heads_;
  Inputs neurons_;
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
        normed_embedding_(model.family == "bert"),
        added_(growth.before, model),
        columns_(growth.before.width, model.width),
        products_(added_.heads ? std::optional(QueryWidth(growth.before)) : std::nullopt,
                  added_.neurons ? std::optional(MlpWidth(growth.before)) : std::nullopt) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override {
    return products_.masks() ? &products_ : nullptr;
  }

  const ColumnMask* StreamMask() override { return added_.columns ? &columns_ : nullptr; }

  void OnSite(const GraftSite& site, Grafts& grafts) override {
    const bool masked_by_norm = normed_embedding_ && !site.sub_layer;
    if (added_.columns && site.looks_up && !masked_by_norm) {
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
    WEFT_RETURN_IF_ERROR(columns_.SetShare(context, share_));
    return products_.SetShare(context, share_);
  }

  void OnRestored(int64_t steps) override {
    next_step_ = steps;
    share_ = 0;  // until it is asked for
  }

 private:
  MaskedGrowth growth_;
  int64_t layers_;
  bool normed_embedding_;  ///< A norm, with the mask, ends the embedding.
  AddedParts added_;
  ColumnMask columns_;
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
