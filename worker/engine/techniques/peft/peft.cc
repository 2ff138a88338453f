// Parameter-efficient tuning: what is frozen, and how adapters start.
#include <cmath>
#include <memory>

#include "worker/engine/techniques/peft/adapter_starts.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_cost.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class Peft : public Technique {
 public:
  explicit Peft(const ModelSpec& model) : model_(model), factory_(model) {}

  ProductsFactory* BlockProducts() override {
    return model_.peft.method == "selective" ? nullptr : &factory_;
  }

  Status OnParameters(ParameterSet& parameters) override {
    WEFT_RETURN_IF_ERROR(CheckPeftNames(model_));
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.adapter != AdapterSide::kNone) {
        SetStart(parameters, i);
        if (IsSharedFactor(parameter.name)) parameters.SetFrozen(i);
      } else if (!IsSavedWhole(model_, parameter.name)) {
        parameters.SetFrozen(i);
      }
    }
    if (!StartsFromWeights(model_.peft)) return OkStatus();
    parameters.AddValuesHook([this, &parameters](Context&, ValuesFrom from) {
      return from == ValuesFrom::kCheckpoint ? OkStatus()
                                             : StartFromWeights(model_.peft, parameters);
    });
    return OkStatus();
  }

 private:
  /// Each starts so that the network is as it is without adapters.
  void SetStart(ParameterSet& parameters, int64_t index) const {
    const PeftSpec& spec = model_.peft;
    const Parameter& parameter = parameters[index];
    if (spec.method == "ia3") return parameters.SetStart(index, {.mean = 1});
    if (MergesWeights(spec)) return parameters.SetStart(index, StartOfMerged(parameter));
    if (parameter.adapter != AdapterSide::kInput) {
      const bool factor = parameter.shape.rank == 2 && spec.method == "lora";
      return parameters.SetStart(index, {}, factor ? spec.loraplus_lr_ratio : 1);
    }
    if (spec.init == "gaussian") {
      const auto rank = static_cast<double>(parameter.shape[0]);
      return parameters.SetStart(index, {.deviation = 1 / rank});
    }
    parameters.SetStart(index, KaimingUniform(parameter, 1 / std::sqrt(3.0)));
  }

  /// Deviation gain / sqrt(columns). With the slope sqrt(5) that peft mostly takes, the gain is
  /// sqrt(1 / 3): uniform up to 1 / sqrt(columns).
  static Initializer KaimingUniform(const Parameter& parameter, double gain) {
    const auto columns = static_cast<double>(parameter.logical_shape()[-1]);
    return {.deviation = gain / std::sqrt(columns), .distribution = Distribution::kUniform};
  }

  /// As in peft, of each adapter one tensor is zero.
  Initializer StartOfMerged(const Parameter& parameter) const {
    const auto is = [&](const char* end) { return parameter.name.ends_with(end); };
    if (IsSharedFactor(parameter.name)) return KaimingUniform(parameter, std::sqrt(2.0));
    if (is("vera_lambda_d")) return {.mean = model_.peft.d_initial};
    const bool zero = is("hada_w2_b") || is("lokr_w1") || is("lokr_w1_a") || is("oft_R.weight") ||
                      is("vera_lambda_b");
    return zero ? Initializer() : KaimingUniform(parameter, 1 / std::sqrt(3.0));
  }

  ModelSpec model_;
  PeftProductsFactory factory_;
};

}  // namespace

std::unique_ptr<Technique> NewPeft(const TechniqueInputs& inputs) {
  if (inputs.model.peft.method == "none") return nullptr;
  return std::make_unique<Peft>(inputs.model);
}

}  // namespace weft::engine
