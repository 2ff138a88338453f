#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "kernels/block_sparse/block_pattern.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/structured_matrices/structured_weight.h"

namespace weft::engine {

class StructuredProductsFactory;

/// Products of a layer some of whose outputs have structured matrices as weights.
class StructuredProducts : public WeightProducts {
 public:
  /// `factory` outlives this.
  StructuredProducts(const LinearLayer& layer, StructuredProductsFactory& factory);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  struct Output {
    int64_t column = 0;
    int64_t columns = 0;
    int64_t bias = -1;  ///< That Forward adds.
    std::unique_ptr<StructuredWeight> structured = {};
    std::optional<PackedParameter> dense = {};  ///< Where it has its weight.
    int64_t middle = 0;                         ///< Columns of gradients in the middle before it.
  };
  /// The gradient in the middle of an output, in what Prepare made for all.
  Tensor MiddleOf(const Output& output, const Tensor& gradients, int64_t rows) const;
  const Output& At(int64_t column) const;

  const ParameterSet* parameters_;
  DType compute_;
  std::vector<Output> outputs_;
  int64_t middle_ = 0;  ///< Columns of all gradients in the middle.
};

/// Makes StructuredProducts of the layers of blocks that model.structured_matrices names.
class StructuredProductsFactory : public ProductsFactory {
 public:
  explicit StructuredProductsFactory(const ModelSpec& model) : model_(model) {}

  std::vector<ParameterInfo> ReplacementsOf(const ParameterInfo& weight) const override;
  Shard ShardOfReplacement(const ParameterInfo& weight, const ParameterInfo& tensor,
                           const Shard& of_weight) const override;
  std::vector<float> WeightFrom(const ParameterInfo& weight,
                                const std::vector<std::vector<float>>& tensors) const override;
  std::vector<std::vector<float>> TensorsNearest(const ParameterInfo& weight,
                                                 std::span<const float> values) const override;

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  /// The products with one of its weights that is structured.
  std::unique_ptr<StructuredWeight> NewWeight(const LinearLayer& layer, const OutputWeight& weight);

  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context& context) override;
  Status StartPack(Context&, Repack) override { return OkStatus(); }

 private:
  ModelSpec model_;
  /// Patterns of pixelfly, by the shape of a weight and, on tensor-parallel ranks, the ranges of
  /// its blocks: weights of one shape have their blocks in the same places.
  std::map<std::vector<int64_t>, kernels::BlockPattern> patterns_;
};

}  // namespace weft::engine
