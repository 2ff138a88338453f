// Independent training of sub-networks: in each round of local steps a data-parallel rank trains
// its own part of the heads and of the MLPs' neurons (HIST, arXiv 2310.17890).
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "worker/engine/techniques/sub_networks/divided_parameter.h"
#include "worker/engine/techniques/sub_networks/narrow_products.h"
#include "worker/engine/techniques/sub_networks/partition.h"
#include "worker/engine/techniques/sub_networks/sub_networks_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Makes the products of blocks, and owns what says which units they compute.
class SubNetworkProducts : public ProductsFactory {
 public:
  explicit SubNetworkProducts(const ModelSpec& model) : model_(model) {}

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    const Parameter& weight = (*layer.parameters)[layer.weight];
    const bool heads = IsAttention(weight.role);
    DividedSubLayer& in = sub_layers_[{weight.block, heads}];
    in.units = heads ? KvHeads(model_) : MlpWidth(model_);
    if (EndsSubLayer(weight.role)) in.site = weight.name;
    return std::make_unique<NarrowProducts>(layer, &in);
  }
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context& /*context*/) override { return OkStatus(); }
  Status StartPack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

  /// By block, and whether it is the attention.
  using SubLayers = std::map<std::pair<int64_t, bool>, DividedSubLayer>;
  SubLayers& sub_layers() { return sub_layers_; }

 private:
  ModelSpec model_;
  SubLayers sub_layers_;
};

class SubNetworks : public Technique {
 public:
  SubNetworks(const ModelSpec& model, const TrainSpec& train)
      : model_(model), steps_of_round_(train.local_steps), products_(model) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override { return &products_; }

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    if (!divides()) return OkStatus();
    WEFT_RETURN_IF_ERROR(CheckSubNetworkUnits(model_, parts.data_ranks));
    restarted_.parameters.resize(static_cast<size_t>(parts.parameters->size()));
    for (const int64_t index : TrainedParameters(*parts.parameters)) {
      if (!DividedParameter::Divides(*parts.parameters, index)) continue;
      const Parameter& parameter = (*parts.parameters)[index];
      const DividedSubLayer& in =
          products_.sub_layers().at({parameter.block, IsAttention(parameter.role)});
      divided_.push_back({&in, DividedParameter(parts.parameters, index, in.units)});
      restarted_.parameters[static_cast<size_t>(index)] = true;
    }
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override {
    return divides() ? "each round has another part of the network" : "";
  }

  Status BeforeStep(int64_t step) override {
    if (!divides() || RoundOf(step) == round_) return OkStatus();
    round_ = RoundOf(step);
    Context& context = *parts_.context;
    for (Divided& each : divided_) {
      WEFT_RETURN_IF_ERROR(each.parameter.SetOwn(context, UnitsOf(*each.in, round_)));
    }
    // What they remember is of other units, or of long ago.
    restarted_.updates = 0;
    for (const NamedTensor& tensor : parts_.optimizer_state()) {
      if (tensor.parameter < 0 || !restarted_.parameters[static_cast<size_t>(tensor.parameter)]) {
        continue;
      }
      WEFT_RETURN_IF_ERROR(Clear(context.stream, tensor.view));
    }
    return OkStatus();
  }

  bool WeightsDependOnStep() const override { return divides(); }

  Status BeforeForward(Context&, std::optional<int64_t> step) override {
    if (!divides()) return OkStatus();
    const int64_t round = step ? RoundOf(*step) : kWholeNetwork;
    if (round == computed_round_) return OkStatus();
    computed_round_ = round;
    for (auto& [place, sub_layer] : products_.sub_layers()) {
      sub_layer.own = step ? UnitsOf(sub_layer, round) : OwnUnits();
      ++sub_layer.version;
    }
    return OkStatus();
  }

  RestartedState Restarted() const override { return restarted_; }

  // Weights of others have no gradient, but they decay.
  Status OnUpdated(int64_t) override {
    if (!divides()) return OkStatus();
    ++restarted_.updates;
    ProfileScope scope(parts_.context->profiler, "restore units of others");
    for (const Divided& each : divided_) {
      WEFT_RETURN_IF_ERROR(
          each.parameter.Restore(*parts_.context, parts_.outer_value(each.parameter.index())));
    }
    return OkStatus();
  }

  // The outer step divides by the number of ranks.
  Status OnLearned(Context& state) override {
    for (const Divided& each : divided_) {
      WEFT_RETURN_IF_ERROR(each.parameter.KeepOwn(state, static_cast<float>(parts_.data_ranks)));
    }
    return OkStatus();
  }

  void OnRestored(int64_t) override { round_ = computed_round_ = kNoRound; }

 private:
  static constexpr int64_t kWholeNetwork = -1;
  static constexpr int64_t kNoRound = -2;

  struct Divided {
    const DividedSubLayer* in;
    DividedParameter parameter;
  };

  /// One rank has the whole network.
  bool divides() const { return parts_.data_ranks > 1; }
  int64_t RoundOf(int64_t step) const { return step / steps_of_round_; }

  OwnUnits UnitsOf(const DividedSubLayer& in, int64_t round) const {
    return UnitsOfRank(static_cast<uint64_t>(parts_.job->train.seed), round, in.site, in.units,
                       parts_.data_rank, parts_.data_ranks);
  }
  ModelSpec model_;
  int64_t steps_of_round_;
  SubNetworkProducts products_;
  TrainingParts parts_;
  std::vector<Divided> divided_;
  RestartedState restarted_;
  int64_t round_ = kNoRound;           ///< Whose units are this rank's.
  int64_t computed_round_ = kNoRound;  ///< That passes are of, which may be the next one.
};

}  // namespace

std::unique_ptr<Technique> NewSubNetworks(const TechniqueInputs& inputs) {
  if (!inputs.train.local_sub_networks) return nullptr;
  return std::make_unique<SubNetworks>(inputs.model, inputs.train);
}

}  // namespace weft::engine
