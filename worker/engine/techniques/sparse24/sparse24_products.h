#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/spec/train_spec.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// The mask of the weight of a layer.
class Sparse24Layer {
 public:
  explicit Sparse24Layer(const LinearLayer& layer) : layer_(layer) {}

  const LinearLayer& layer() const { return layer_; }
  /// Its mask in the layout of kernels/sparse24_mask; none where the weight stays dense.
  const TensorView& mask() const { return mask_.view(); }
  /// Its rows for the outputs [column, column + columns).
  TensorView mask_of(int64_t column, int64_t columns) const;
  /// The same for the gradient of the input, where HasBackwardMasks; else none.
  const TensorView& backward_mask() const { return backward_mask_.view(); }

  /// Says whether the weight is to be sparse, once it is known what is trained. kInvalid where its
  /// sizes do not allow it.
  Status Choose();
  /// Allocates the masks of a weight that is.
  Status Allocate(Context& context, const SparsitySpec& spec);

  /// Has the mask keep all, before one has been searched. Products stay dense.
  Status KeepAll(const Stream& stream);
  /// Searches for the mask of the weight as it is now.
  Status FindMask(Context& context, const SparsitySpec& spec);
  /// What s_ste multiplies by: such that the first sparse weight is as near to the weight as it can
  /// be. 0: not known yet. Part of the state.
  float scale() const { return scale_; }
  /// The mask has been overwritten.
  void Changed() { ++version_; }
  /// Another number for each mask; 0: none has been searched.
  int64_t version() const { return version_; }
  /// Bits that FindMask changed, on this rank.
  Result<int64_t> CountFlips(Context& context) const;

  /// One of the stacked weights, and its rows of the mask.
  struct Part {
    int64_t parameter = 0;
    TensorView mask;           ///< [rows / 4, in / 4] u16
    TensorView backward_mask;  ///< Likewise, or none.
    float* scale = nullptr;    ///< That of the layer.
  };
  std::vector<Part> Parts();

 private:
  Status FindScale(Context& context);
  Status FindBackwardMask(const Stream& stream);

  LinearLayer layer_;
  bool chosen_ = false;
  Tensor mask_, backward_mask_;
  Tensor flips_;  ///< [out / 4] i32, of the last search.
  int64_t version_ = 0;
  float scale_ = 0;
};

/// What the layers of a model have in common.
struct Sparse24Mode {
  SparsitySpec spec;
  bool sparse = false;   ///< Products are, from the next Pack on.
  bool adapters = true;  ///< They count in passes, of weights that have any.
};

/// The products of an MLP's layer with half of its weights (Hu et al. 2024, arXiv 2404.01847): the
/// forward pass and the gradient of x read W under its mask, and dW is computed from a 2:4 estimate
/// of dy. It is of the whole of W, as if there were no mask. Outside of the sparse phase, and
/// before there is a mask, they are dense.
class Sparse24Products : public WeightProducts {
 public:
  /// Both outlive this.
  Sparse24Products(const Sparse24Layer* layer, const Sparse24Mode* mode);

  /// All, in the sparse phase.
  bool Fuses(kernels::ProductActivation /*activation*/) const override {
    return sparse_ != nullptr;
  }
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
  bool estimates() const { return sparse_ != nullptr && mode_->spec.gradient_estimate != "exact"; }
  /// Columns of a target, from `column` on, that draw together: from `first_column` on of those of
  /// the whole layer.
  struct DrawnColumns {
    int64_t column, columns, first_column;
  };
  std::vector<DrawnColumns> ColumnsIn(const WeightGradientTarget& target) const;
  /// The gradient of the weight of these columns.
  Status EstimatedGradient(Context& context, const Tensor& x, const Tensor& dy,
                           const DrawnColumns& drawn, int64_t first_row,
                           const WeightGradientTarget& target) const;
  /// WeightGradient of the whole of W.
  Status WholeGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                       std::span<const WeightGradientTarget> targets) const;
  /// Packs the weight under a mask.
  Status PackSparse(Context& context, const TensorView& mask,
                    std::unique_ptr<kernels::SparseWeight>& sparse);

  const Sparse24Layer* layer_;
  const Sparse24Mode* mode_;
  DenseProducts dense_;
  std::unique_ptr<kernels::SparseWeight> sparse_;    ///< Or none: products are dense.
  std::unique_ptr<kernels::SparseWeight> backward_;  ///< Of the backward mask, or none.
  int64_t mask_version_ = -1;                        ///< Of the masks that they have.
  ExternalBytes held_;
  uint32_t site_;
};

/// Makes the products of MLPs sparse, and has their masks.
class Sparse24ProductsFactory : public ProductsFactory {
 public:
  explicit Sparse24ProductsFactory(const SparsitySpec& spec) : mode_{spec} {}

  const SparsitySpec& spec() const { return mode_.spec; }

  bool PrunesActivations() const override {
    return mode_.sparse && weft::PrunesActivations(mode_.spec);
  }
  /// As LazyAdaptersOf has them.
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
  void SetSparse(bool sparse) { mode_.sparse = sparse; }
  /// Whether adapters count in the passes from now on.
  void SetAdapters(bool count) { mode_.adapters = count; }

  Status KeepAll(const Stream& stream);
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
  std::vector<std::unique_ptr<Sparse24Layer>> layers_;
};

}  // namespace weft::engine
