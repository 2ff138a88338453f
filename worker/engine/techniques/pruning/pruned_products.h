#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/train_spec.h"
#include "kernels/sparse24/sparse24.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// What the pruned layers of a model have in common.
struct PrunedMode {
  std::map<int64_t, TensorView> masks;  ///< By index of the parameter, [rows, columns] u8.
  Collective* tensor_ranks = nullptr;   ///< As in TechniqueInputs.
  bool chosen = false;                  ///< They say what is kept.
  bool whole_gradients = false;         ///< Also of what is not.
  int64_t version = 0;                  ///< Of the masks.
};

/// The products of a layer that multiply by the kept weights alone, where these are few enough
/// (UsesSparseProducts), and on a CPU differentiate by them alone. Else they are dense: the zeros
/// are multiplied too. All tensor-parallel ranks pack a layer together. New masks are waited for.
class PrunedProducts : public WeightProducts {
 public:
  /// Both outlive this.
  PrunedProducts(const LinearLayer& layer, const PruningSpec& spec, const PrunedMode* mode);

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
  /// Has sparse_ take the masks; none where all or too many weights are kept.
  Status TakeMasks(Context& context);
  /// Share of the weights of the whole layer that is kept: tensor-parallel ranks, whose parts keep
  /// more or fewer of them, choose the same products. 1 where a weight has no mask.
  Result<double> Density(const Stream& stream) const;

  LinearLayer layer_;
  PruningSpec spec_;
  const PrunedMode* mode_;
  DenseProducts dense_;
  std::unique_ptr<kernels::SparseWeight> sparse_;  ///< Or none: products are dense.
  int64_t version_ = -1;
  ExternalBytes held_;
};

/// Makes the products of layers whose weights are pruned.
class PrunedProductsFactory : public ProductsFactory {
 public:
  /// `tensor_ranks`: as in TechniqueInputs.
  PrunedProductsFactory(const PruningSpec& spec, Collective* tensor_ranks) : spec_(spec) {
    mode_.tensor_ranks = tensor_ranks;
  }

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status Allocate(Context& /*context*/) override { return OkStatus(); }
  Status StartPack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

  /// The mask of a parameter, which outlives this.
  void AddMask(int64_t parameter, const TensorView& mask) { mode_.masks[parameter] = mask; }
  /// The masks have changed; `chosen`: they say what is kept.
  void MasksChanged(bool chosen) {
    mode_.chosen = chosen;
    ++mode_.version;
  }
  /// Whether gradients of weights that are not kept are computed, too.
  void SetWholeGradients(bool whole) { mode_.whole_gradients = whole; }

 private:
  PruningSpec spec_;
  PrunedMode mode_;
};

}  // namespace weft::engine
