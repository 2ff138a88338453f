// Parameter-efficient tuning: what is frozen, and how adapters start.
#include <cmath>
#include <memory>

#include "worker/engine/techniques/peft/lora_products.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class Peft : public Technique {
 public:
  explicit Peft(const ModelSpec& model) : factory_(model) {}

  ProductsFactory* BlockProducts() override { return &factory_; }

  // B starts at zero, so that the network starts as it is without adapters.
  Status OnParameters(ParameterSet& parameters) override {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.adapter == AdapterSide::kNone) {
        parameters.SetFrozen(i);
        continue;
      }
      const bool input = parameter.adapter == AdapterSide::kInput;
      parameters.SetStart(i, input ? StartOfA(parameter.logical_shape()[-1]) : Initializer());
    }
    return OkStatus();
  }

 private:
  /// That of PEFT (Kaiming, uniform, with the slope sqrt(5)): uniform up to 1 / sqrt(in).
  static Initializer StartOfA(int64_t in) {
    return {.deviation = 1 / std::sqrt(3 * static_cast<double>(in)),
            .distribution = Distribution::kUniform};
  }

  LoraProductsFactory factory_;
};

}  // namespace

std::unique_ptr<Technique> NewPeft(const TechniqueInputs& inputs) {
  if (inputs.model.peft.method == "none") return nullptr;
  return std::make_unique<Peft>(inputs.model);
}

}  // namespace weft::engine
