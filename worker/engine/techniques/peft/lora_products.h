#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products of a layer some of whose weights have the factors of LoRA besides (Hu et al. 2021,
/// arXiv 2106.09685): y = x Wᵀ + b + scale (x Aᵀ) Bᵀ. What is between the factors is computed again
/// in the backward pass.
class LoraProducts : public WeightProducts {
 public:
  LoraProducts(const LinearLayer& layer, const PeftSpec& spec);

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
  /// The factors of one output.
  struct Adapter {
    int64_t column = 0;  ///< The first of its columns of y.
    int64_t columns = 0;
    PackedParameter a;
    PackedParameter b;
  };
  /// scale x Aᵀ, [rows, rank].
  Result<Tensor> MiddleOf(Context& context, const Adapter& adapter, const Tensor& x) const;
  /// Its gradient for the adapter, in what Prepare made for all.
  Tensor MiddleGradientOf(const Adapter& adapter, const Tensor& gradients, int64_t rows) const;
  /// The gradients of the factors that `to` has a place for.
  Status FactorGradients(Context& context, const Adapter& adapter, const Tensor& x,
                         const OutputGradient& dy, const WeightGradientTarget& to) const;
  /// kernels::Scale by scale.
  Status Scaled(Context& context, const Tensor& x) const;

  DType compute_;
  int64_t rank_;
  float scale_;
  DenseProducts dense_;
  std::vector<Adapter> adapters_;  ///< By column.
};

/// Makes LoraProducts of the layers of blocks that model.peft names.
class LoraProductsFactory : public ProductsFactory {
 public:
  explicit LoraProductsFactory(const ModelSpec& model) : model_(model) {}

  std::vector<ParameterInfo> AdaptersOf(const ParameterInfo& weight) const override;
  std::vector<float> Merged(const ParameterInfo& weight, std::span<const float> values,
                            const std::vector<std::vector<float>>& tensors) const override;

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context&) override { return OkStatus(); }
  Status StartPack(Context&) override { return OkStatus(); }

 private:
  ModelSpec model_;
};

}  // namespace weft::engine
