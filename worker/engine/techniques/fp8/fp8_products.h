#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/spec/train_spec.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/fp8/fp8_scaling.h"

namespace weft::engine {

/// Products with operands in FP8 and sums in f32 (Micikevicius et al. 2022, arXiv 2209.05433). W is
/// quantised when it is packed, once where it is frozen; x and dy for each product, from bf16. W
/// and b are whole on the device.
class Fp8Products : public WeightProducts {
 public:
  /// `number` of the layer in `scaling`, which outlives this.
  Fp8Products(const LinearLayer& layer, Fp8Scaling* scaling, int64_t number);

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
  Status PackBias(Context& context);
  /// Whether any of the weights is trained.
  bool trained() const { return layer_.parameters->AnyTrainable(layer_.weight, layer_.outputs); }

  LinearLayer layer_;
  Fp8Scaling* scaling_;
  int64_t number_;         ///< Fp8Scaling::AddLayer
  int64_t weight_number_;  ///< Fp8Scaling::AddWeight
  Fp8Tensor weight_;       ///< After Pack.
  Tensor bias_;            ///< As bf16, of those that Forward adds; or none.
};

/// Makes Fp8Products of the layers of blocks, except the blocks at the ends that train.fp8 leaves
/// to bf16, and has their scales.
class Fp8ProductsFactory : public ProductsFactory {
 public:
  /// Takes what Fp8Scaling takes.
  Fp8ProductsFactory(const Fp8Spec& spec, bool with_gradients, Collective* tensor_group = nullptr)
      : scaling_(spec, with_gradients, tensor_group) {}

  Fp8Scaling& scaling() { return scaling_; }

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  void SetStage(const std::vector<Shard::Range>& blocks, int64_t of) override;
  Status Allocate(Context& context) override { return scaling_.Allocate(context); }
  Status StartPack(Context& context, Repack what) override {
    return scaling_.StartPack(context, what);
  }

 private:
  /// The range of blocks whose products are in FP8, in a network of `blocks` blocks.
  Shard::Range BlocksOf(int64_t blocks) const;

  Fp8Scaling scaling_;
  std::map<std::string, int64_t> groups_;  ///< Numbers of layers that have a group.
};

}  // namespace weft::engine
