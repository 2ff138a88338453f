#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/rng.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/techniques/stochastic_depth/stochastic_depth_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Draws in each step whether the branch is computed, which is then divided by the probability of
/// that: its expectation is what evaluation computes.
class StochasticDepthGate : public BranchGate {
 public:
  /// `unit`: the name of what is drawn for.
  StochasticDepthGate(const StochasticDepthSpec& spec, const std::string& unit, int64_t layers,
                      int64_t steps)
      : spec_(spec),
        site_(SiteHash((unit + "/stochastic_depth").c_str())),
        layers_(layers),
        steps_(steps) {}

  BranchChoice Choose(const Context& context, const GraftUse& use) const override {
    const double skip =
        SkipProbability(spec_, use.layer, layers_, ShareOfRate(spec_, context.step, steps_));
    const PhiloxKey key = DropoutKey(context, site_, use.use);
    const auto skips = [&](int64_t draw) {
      return UniformFloat(Philox(key, static_cast<uint64_t>(draw)).v[0]) < skip;
    };
    BranchChoice choice{.scale = static_cast<float>(1 / (1 - skip))};
    if (spec_.mode == "batch") {
      choice.computed = !skips(0);
      return choice;
    }
    for (int64_t i = 0; i < use.sequences; ++i) {
      if (!skips(use.first_sequence + i)) choice.sequences.push_back(i);
    }
    // Other data-parallel ranks may compute the branch and reduce its gradients: this one does with
    // zeros.
    if (choice.sequences.empty()) return {.scale = 0, .sequences = {0}};
    if (std::ssize(choice.sequences) == use.sequences) choice.sequences.clear();
    return choice;
  }

 private:
  StochasticDepthSpec spec_;
  uint32_t site_;
  int64_t layers_;
  int64_t steps_;
};

class StochasticDepth : public Technique {
 public:
  StochasticDepth(const ModelSpec& model, int64_t steps)
      : spec_(model.stochastic_depth), layers_(model.layers), steps_(steps) {}

  void OnSite(const GraftSite& site, Grafts& grafts) override {
    if (!site.sub_layer) return;
    grafts.SetGate(std::make_unique<StochasticDepthGate>(spec_, UnitOf(site), layers_, steps_));
  }

  std::string_view WhyNoGraphs() const override {
    return "which residual branches are computed is drawn on the host";
  }

 private:
  std::string UnitOf(const GraftSite& site) const {
    return spec_.unit == "layer" ? "layer " + std::to_string(site.block) : site.name;
  }

  StochasticDepthSpec spec_;
  int64_t layers_;
  int64_t steps_;
};

}  // namespace

std::unique_ptr<Technique> NewStochasticDepth(const TechniqueInputs& inputs) {
  if (inputs.model.stochastic_depth.rate == 0) return nullptr;
  return std::make_unique<StochasticDepth>(inputs.model, inputs.train.steps);
}

}  // namespace weft::engine
