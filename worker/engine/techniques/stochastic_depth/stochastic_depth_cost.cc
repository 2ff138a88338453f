#include "worker/engine/techniques/stochastic_depth/stochastic_depth_cost.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {
namespace {

using namespace features;

const Feature kStochasticDepth = {
    .name = "stochastic depth",
    .setting = "model.stochastic_depth",
    .asked = [](const JobSpec& job) { return job.model.stochastic_depth.rate > 0; },
    .shown = [](const JobSpec&) { return std::string("model.stochastic_depth"); }};

bool OfSequences(const JobSpec& job) {
  return job.model.stochastic_depth.rate > 0 && job.model.stochastic_depth.mode == "sample";
}

const Feature kSettings[] = {
    {.name = "stochastic depth by sequence",
     .setting = "model.stochastic_depth.mode sample",
     .asked = OfSequences,
     .shown = [](const JobSpec&) { return std::string("model.stochastic_depth.mode sample"); }}};
const Feature& kOfSequences = kSettings[0];

constexpr std::string_view kBatchMode = "model.stochastic_depth.mode batch";
constexpr std::string_view kMasks = "masks are drawn by position in the whole batch";
constexpr std::string_view kWholeRows =
    "a residual branch reads some sequences of the micro-batch, and each rank has a part of all";

const Refusal kStochasticDepthRefusals[] = {
    {&kOfSequences, &kSequenceParallel, kWholeRows, kBatchMode},
    {&kOfSequences, &kContextParallel, kWholeRows, kBatchMode},
    {&kOfSequences, &kDropout, kMasks, "model.dropout 0, or model.stochastic_depth.mode batch"},
    {&kOfSequences, &kAttentionDropout, kMasks,
     "model.attention_dropout 0, or model.stochastic_depth.mode batch"},
    {&kOfSequences, &kActivationCompression,
     "values are rounded by their position in the whole batch", kBatchMode},
    {&kOfSequences, &kExperts, "routers would have to leave out the tokens of skipped sequences",
     kBatchMode},
};

class StochasticDepthCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "stochastic_depth"; }
  const Feature& feature() const override { return kStochasticDepth; }
  std::span<const Feature> settings() const override { return kSettings; }
  std::span<const Refusal> refusals() const override { return kStochasticDepthRefusals; }

  Status Check(const JobSpec& job) const override {
    const StochasticDepthSpec& spec = job.model.stochastic_depth;
    const StochasticDepthSpec unset;
    if (spec.rate > 0 || spec == unset) return OkStatus();
    const std::string set = spec.mode != unset.mode     ? "mode " + spec.mode
                            : spec.decay != unset.decay ? "decay " + spec.decay
                            : spec.unit != unset.unit   ? "unit " + spec.unit
                                                        : "gamma";
    return InvalidError("model.stochastic_depth." + set +
                        " says how branches are skipped, and none is; hint: "
                        "model.stochastic_depth.rate above 0");
  }

  // Each rank computes a branch for one sequence of a micro-batch where none keeps it.
  double ComputedShare(const ModelSpec& model, SubLayer, int64_t layer,
                       int64_t sequences) const override {
    const StochasticDepthSpec& spec = model.stochastic_depth;
    const double skip = SkipProbability(spec, layer, model.layers, MeanShareOfRate(spec));
    if (spec.mode != "sample" || sequences == 0) return 1 - skip;
    const auto count = static_cast<double>(sequences);
    return 1 - skip + std::pow(skip, count) / count;
  }

  bool ChangesBranches(const ModelSpec& model) const override {
    return model.stochastic_depth.rate > 0;
  }
};

}  // namespace

const TechniqueCost& StochasticDepthTechniqueCost() {
  static const StochasticDepthCost cost;
  return cost;
}

}  // namespace weft
