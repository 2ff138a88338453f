// Weights of blocks as structured matrices: their tensors and how these start.
#include <cmath>
#include <cstdint>
#include <memory>

#include "worker/engine/techniques/structured_matrices/structured_products.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class StructuredMatrices : public Technique {
 public:
  explicit StructuredMatrices(const ModelSpec& model)
      : spec_(model.structured_matrices), factory_(model) {}

  ProductsFactory* BlockProducts() override { return &factory_; }

  Status OnParameters(ParameterSet& parameters) override {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].in_place_of.empty()) StartFactors(parameters, i++);
    }
    return OkStatus();
  }

 private:
  /// W starts with the deviation that the network's initialization gives to the weight: a number of
  /// it is a sum of `rank` products. What the first factor makes of x starts with the variance of
  /// x.
  void StartFactors(ParameterSet& parameters, int64_t first) const {
    const Shape& shape = parameters[first].weight_shape;
    const MonarchSizes size = MonarchOf(spec_, {shape[0], shape[1]});
    const double learning_rate_scale = parameters[first].learning_rate_scale;
    Initializer second = parameters[first].initializer;
    const bool uniform = second.distribution == Distribution::kUniform;
    const Initializer start{
        .deviation = 1 / std::sqrt(static_cast<double>(size.in)),
        .distribution = uniform ? Distribution::kUniform : Distribution::kNormal};
    second.deviation /= start.deviation * std::sqrt(static_cast<double>(size.rank));
    parameters.SetStart(first, start, learning_rate_scale);
    parameters.SetStart(first + 1, second, learning_rate_scale);
  }

  StructuredMatricesSpec spec_;
  StructuredProductsFactory factory_;
};

}  // namespace

std::unique_ptr<Technique> NewStructuredMatrices(const TechniqueInputs& inputs) {
  if (inputs.model.structured_matrices.kind == "none") return nullptr;
  return std::make_unique<StructuredMatrices>(inputs.model);
}

}  // namespace weft::engine
