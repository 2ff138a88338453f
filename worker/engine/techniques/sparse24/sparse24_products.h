#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/spec/train_spec.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/techniques/sparse24/sparse24_layer.h"
#include "worker/engine/techniques/sparse24/sparse_copies.h"

namespace weft::engine {

/// The ranks that have other parts of what products read; they outlive these.
struct Sparse24Ranks {
  Collective* tensor = nullptr;              ///< Tensor-parallel ones, or none.
  const ContextParallel* context = nullptr;  ///< Context-parallel ones, or none,
  int64_t sequence_length = 0;               ///< and the tokens of a sequence, of all of them.
};

/// What the layers of a model have in common.
struct Sparse24Mode {
  SparsitySpec spec;
  Sparse24Ranks ranks = {};
  bool sparse = false;   ///< Products are, from the next Pack on.
  bool adapters = true;  ///< They count in passes, of weights that have any.
};

/// The products of an MLP's layer with half of its weights (Hu et al. 2024, arXiv 2404.01847): the
/// forward pass and the gradient of x read W under its mask, and dW is computed from a 2:4 estimate
/// of dy. It is of the whole of W, as if there were no mask. Outside of the sparse phase, and
/// before there is a mask, they are dense.
class Sparse24Products : public WeightProducts {
 public:
  /// All outlive this.
  Sparse24Products(const Sparse24Layer* layer, const Sparse24Mode* mode, SpareSparseCopies* spare);

  /// All, in the sparse phase.
  bool Fuses(kernels::ProductActivation /*activation*/) const override { return copies_->used(); }
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
  /// Whether gradients of weights are computed from an estimate.
  bool estimates() const { return copies_->used() && mode_->spec.gradient_estimate != "exact"; }
  /// Columns of a target, from `column` on, that draw together: from `first_column` on of those of
  /// the whole layer.
  struct DrawnColumns {
    int64_t column, columns, first_column;
  };
  std::vector<DrawnColumns> ColumnsIn(const WeightGradientTarget& target) const;
  /// Rows of the gradient that draw together.
  std::vector<RowSpan> SpansOf(const OutputGradient& dy) const;
  /// The gradient of the weight of these columns, from these rows.
  Status EstimatedGradient(Context& context, const Tensor& x, const Tensor& dy,
                           const DrawnColumns& drawn, const RowSpan& span,
                           const WeightGradientTarget& target) const;
  /// WeightGradient of the whole of W.
  Status WholeGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                       std::span<const WeightGradientTarget> targets) const;

  const Sparse24Layer* layer_;
  const Sparse24Mode* mode_;
  DenseProducts dense_;
  std::shared_ptr<SparseCopies> copies_;  ///< Unused ones: products are dense.
  uint32_t site_;
};

/// Makes the products of MLPs sparse, and has their masks.
class Sparse24ProductsFactory : public ProductsFactory {
 public:
  explicit Sparse24ProductsFactory(const SparsitySpec& spec, const Sparse24Ranks& ranks = {})
      : mode_{spec, ranks} {}

  const SparsitySpec& spec() const { return mode_.spec; }

  bool PrunesActivations() const override {
    return mode_.sparse && weft::PrunesActivations(mode_.spec);
  }
  /// The adapters that LazyAdaptersOf has.
  std::vector<ParameterInfo> AdaptersOf(const ParameterInfo& weight) const override;
  std::vector<float> Merged(const ParameterInfo& weight, std::span<const float> values,
                            const std::vector<std::vector<float>>& tensors) const override;
  /// Those of layers whose weight may become sparse. Call ChooseLayers once it is known what is
  /// trained.
  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  void SetStage(const std::vector<Shard::Range>& /*blocks*/, int64_t /*of*/) override {}
  Status ChooseLayers();
  Status Allocate(Context& context) override;
  Status StartPack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

  /// Whether products are sparse from the next Pack on.
  void SetSparse(bool sparse) {
    mode_.sparse = sparse;
    if (!sparse) spare_.Clear();
  }
  /// Whether adapters count in the passes from now on.
  void SetAdapters(bool count) { mode_.adapters = count; }

  Status KeepAll(const Stream& stream);
  /// Searches for all masks. Ranks that shard parameters gather them for that, and tensor-parallel
  /// ranks sum what scales are made of, so all call it.
  Status FindMasks(Context& context);
  /// The masks have been overwritten.
  void MasksChanged();

  struct Flips {
    int64_t changed = 0;
    int64_t elements = 0;
  };
  /// What that changed, in the weights here.
  Result<Flips> CountFlips(Context& context) const;

  /// All weights that have a mask.
  std::vector<Sparse24Layer::Part> Parts() const;

 private:
  Sparse24Mode mode_;
  SpareSparseCopies spare_;
  std::vector<std::unique_ptr<Sparse24Layer>> layers_;
};

}  // namespace weft::engine
