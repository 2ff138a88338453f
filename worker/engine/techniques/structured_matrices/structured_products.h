#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/structured_matrices/monarch.h"

namespace weft::engine {

/// Products of a layer some of whose outputs have structured matrices as weights.
class StructuredProducts : public WeightProducts {
 public:
  StructuredProducts(const LinearLayer& layer, const StructuredMatricesSpec& spec);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 bool training) const override;
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
    std::optional<Monarch> monarch = {};
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
  std::vector<float> WeightFrom(const ParameterInfo& weight,
                                const std::vector<std::vector<float>>& tensors) const override;
  std::vector<std::vector<float>> TensorsNearest(const ParameterInfo& weight,
                                                 std::span<const float> values) const override;

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context&) override { return OkStatus(); }
  Status StartPack(Context&) override { return OkStatus(); }

 private:
  ModelSpec model_;
};

}  // namespace weft::engine
