#include "worker/engine/techniques/peft/bottleneck.h"

#include <memory>
#include <utility>

#include "worker/engine/autograd/add.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"

namespace weft::engine {
namespace {

MlpActivation ActivationOf(const PeftSpec& spec) {
  if (spec.non_linearity == "gelu") return MlpActivation::kErfGelu;
  return spec.non_linearity == "swish" ? MlpActivation::kSilu : MlpActivation::kRelu;
}

GraftPlace PlaceOf(const PeftSpec& spec) {
  if (spec.method == "parallel") return GraftPlace::kParallelToSubLayer;
  return spec.method == "pfeiffer" ? GraftPlace::kResidualSum : GraftPlace::kSubLayerOutput;
}

class Bottleneck : public Graft {
 public:
  /// `adds`: to what it reads. Otherwise the place adds its result.
  Bottleneck(ParameterSet* parameters, const MlpOptions& options, DType compute, bool adds,
             float scale)
      : mlp_(parameters, options, compute), adds_(adds), scale_(scale) {}

  Status Pack(Context& context, Repack what) override { return mlp_.Pack(context, what); }

  Result<Value> Forward(Context& context, Tape& tape, Value x, const GraftUse&) const override {
    WEFT_ASSIGN_OR_RETURN(Value made, mlp_.Forward(context, tape, x));
    if (scale_ != 1) {
      WEFT_ASSIGN_OR_RETURN(made, Scale(context, tape, std::move(made), scale_));
    }
    if (!adds_) return made;
    return Add(context, tape, x, made);
  }

 private:
  Mlp mlp_;
  bool adds_;
  float scale_;
};

}  // namespace

std::optional<int64_t> PutBottleneck(const ModelSpec& model, const GraftSite& site,
                                     Grafts& grafts) {
  if (!site.sub_layer || !HasBottleneckAt(model, *site.sub_layer, site.block)) return {};
  const PeftSpec& spec = model.peft;
  const bool parallel = spec.method == "parallel", adds = spec.method == "houlsby";
  const BottleneckNames names(site.name);
  const BottleneckRoles roles(spec, *site.sub_layer);
  ParameterSet& parameters = *site.parameters;
  const int64_t first = parameters.size();
  auto bottleneck = std::make_unique<Bottleneck>(&parameters,
                                                 MlpOptions{.activation = ActivationOf(spec),
                                                            .up = {names.down},
                                                            .down = names.up,
                                                            .width = site.width,
                                                            .inner = BottleneckWidth(model)},
                                                 site.products->compute, adds,
                                                 parallel ? static_cast<float>(spec.scaling) : 1);
  for (int64_t i = first; i < parameters.size(); ++i) {
    const bool down = parameters[i].role == ParameterRole::kMlpUp;
    parameters.SetGrafted(i, down ? roles.down : roles.up);
  }
  grafts.Put(PlaceOf(spec), std::move(bottleneck));
  return first;
}

}  // namespace weft::engine
