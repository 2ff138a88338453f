// Weights of blocks as structured matrices: their tensors and how these start.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/number.h"
#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"
#include "worker/engine/techniques/structured_matrices/structured_products.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class StructuredMatrices : public Technique {
 public:
  explicit StructuredMatrices(const ModelSpec& model)
      : spec_(model.structured_matrices), factory_(model) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override { return &factory_; }

  Status OnParameters(ParameterSet& parameters) override {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const std::string& weight = parameters[i].in_place_of;
      if (weight.empty() || (i > 0 && parameters[i - 1].in_place_of == weight)) continue;
      if (spec_.kind == "pixelfly") {
        StartPixelfly(parameters, i);
      } else {
        StartMonarch(parameters, i);
      }
    }
    return OkStatus();
  }

 private:
  /// Starts a tensor between x and another one, such that its results have the variance of x.
  static Initializer StartOfFirst(const Initializer& weight, int64_t columns) {
    const bool uniform = weight.distribution == Distribution::kUniform;
    return {.deviation = 1 / std::sqrt(D(columns)),
            .distribution = uniform ? Distribution::kUniform : Distribution::kNormal};
  }

  /// W starts with the deviation that the network's initialization gives to the weight: a number of
  /// it is a sum of `rank` products.
  void StartMonarch(ParameterSet& parameters, int64_t first) const {
    const Shape& shape = parameters[first].weight_shape;
    const MonarchSizes size = MonarchOf(spec_, {shape[0], shape[1]});
    const double rate = parameters[first].learning_rate_scale;
    Initializer second = parameters[first].initializer;
    const Initializer start = StartOfFirst(second, size.in);
    second.deviation /= start.deviation * std::sqrt(D(size.rank));
    parameters.SetStart(first, start, rate);
    parameters.SetStart(first + 1, second, rate);
  }

  /// y starts with the variance that the network's initialization gives to it, half of it by the
  /// blocks and half by the matrix of low rank.
  void StartPixelfly(ParameterSet& parameters, int64_t first) const {
    const Shape& shape = parameters[first].weight_shape;
    const PixelflySizes size = PixelflyOf(spec_, {shape[0], shape[1]});
    const double rate = parameters[first].learning_rate_scale;
    const Initializer weight = parameters[first].initializer;
    const double share = size.rank > 0 ? 0.5 : 1;
    // Numbers of a row of the blocks, on average.
    const double kept = D(size.blocks * size.size) / D(size.rows);
    Initializer blocks = weight, out = weight;
    blocks.deviation *= std::sqrt(share * D(shape[1]) / kept);
    const std::vector<PixelflySizes::Place> places = size.Places();
    const int64_t begin = shape[0] - weight.tail_rows;
    const auto in_tail = [&](const PixelflySizes::Place& place) {
      return place.row * size.size >= begin;
    };
    blocks.tail_rows = size.size * std::count_if(places.begin(), places.end(), in_tail);
    parameters.SetStart(first, blocks, rate);
    if (size.rank == 0) return;
    const Initializer in = StartOfFirst(weight, shape[1]);
    out.deviation *= std::sqrt(share * D(shape[1]) / D(size.rank));
    parameters.SetStart(first + 1, in, rate);
    parameters.SetStart(first + 2, out, rate);
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
