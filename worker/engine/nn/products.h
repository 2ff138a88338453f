#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/model/parameter_info.h"
#include "kernels/activation/product_activation.h"
#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// GELU of a form, or another activation of a product's result, and its value.
struct GeluValue {
  kernels::GeluForm form = kernels::GeluForm::kTanh;
  Tensor value = {};
  /// In place of GELU: only where WeightProducts::Fuses says so.
  std::optional<kernels::ProductActivation> other = {};

  kernels::ProductActivation activation() const {
    return other.value_or(kernels::ActivationOf(form));
  }
};

/// A matrix in the numbers of a format, and their scale.
struct ProductOperand {
  Tensor values;
  Tensor scales;
};

/// The gradient of a layer's result as the products of the backward pass read it.
struct OutputGradient {
  Tensor dy;  ///< [rows, out], compute type.
  /// The operands that WeightProducts::Prepare made of it for InputGradient and WeightGradient, in
  /// their own layout; none where they read dy.
  ProductOperand for_input = {};
  ProductOperand for_weight = {};
  int64_t first_row = 0;  ///< Tape::first_row
  /// What Prepare of the inner products made of its gradient, where products are made of others, as
  /// those of adapters are of their weight's; null where it was not called.
  std::shared_ptr<const OutputGradient> inner = {};

  /// That of the others; where they prepared nothing they read this.
  const OutputGradient& Inner() const { return inner ? *inner : *this; }

  /// The operands of WeightGradient, for a deferred weight gradient.
  OutputGradient ForWeight() const {
    OutputGradient own{dy, {}, for_weight, first_row};
    if (inner) own.inner = std::make_shared<const OutputGradient>(inner->ForWeight());
    return own;
  }
};

/// Where the gradients of neighbouring outputs of a layer go.
struct WeightGradientTarget {
  int64_t column = 0;       ///< The first of their columns of y.
  int64_t columns = 0;      ///< Number of their columns.
  TensorView dweight = {};  ///< [columns, in] f32, or none: it is not trained.
  TensorView dbias = {};    ///< [columns] f32, or none.
  bool accumulate = false;  ///< Adds to what is there.
  /// Gradients of the tensors in place of the weight of an output, or besides it (OutputWeight):
  /// f32 of the shape of each, or none where it is not trained.
  std::vector<TensorView> dtensors = {};

  /// Whether anything but the bias is trained.
  bool trains_weight() const {
    return dweight ||
           std::any_of(dtensors.begin(), dtensors.end(), [](const TensorView& d) { return !!d; });
  }
};

/// What a product of the forward pass is for.
struct ForwardUse {
  bool training = false;  ///< In a pass that is differentiated.
  int64_t first_row = 0;  ///< Tape::first_row
};

/// The form of a weight and its products: the arithmetic of y = x Wᵀ + b, where W [out, in] is a
/// matrix of a ParameterSet, or several stacked ones, or what other tensors of it make
/// (ProductsFactory::ReplacementsOf, AdaptersOf). Linear records it on the tape. An
/// implementation keeps what it derives from W in a form of its own; x, y and their gradients are
/// of the compute type. Not thread-safe.
class WeightProducts {
 public:
  virtual ~WeightProducts() = default;

  /// Columns of x, and of y, where W has this many: fewer where some are left out. Pack may change
  /// them.
  virtual int64_t in_features(int64_t all) const { return all; }
  virtual int64_t out_features(int64_t all) const { return all; }

  /// Whether Forward and InputGradient take this activation, too, as they do GELU: `value` then is
  /// of it, and of a gated one has half of the columns of y, or of `before` and dx. Pack may change
  /// it.
  virtual bool Fuses(kernels::ProductActivation /*activation*/) const { return false; }

  /// Renews what is derived from W and b, where they may have changed.
  virtual Status Pack(Context& context, Repack what) = 0;

  /// y = x Wᵀ + b into [rows, out], and GELU(y) into active.value where there is one. x [rows, in]
  /// has rows.
  virtual Status Forward(Context& context, const Tensor& x, const Tensor& y,
                         const GeluValue& active, const ForwardUse& use) const = 0;

  /// What is made of the gradient of y, besides itself: for those of the two functions below that
  /// will be called.
  struct GradientUse {
    bool for_input = false;
    bool for_weight = false;
    int64_t first_row = 0;  ///< Tape::first_row
  };
  /// Prepares the gradient of y, which has rows.
  virtual Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                         const GradientUse& use) const = 0;

  /// dx = dy W, [rows, in]. Where x = GELU(before), writes the gradient of `before` instead, and
  /// computes x again into `active.value` if there is one.
  virtual Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                               const Tensor& before, const GeluValue& active) const = 0;

  /// dW = dyᵀ x and db, the column sums of dy, of these outputs. x has rows.
  virtual Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                std::span<const WeightGradientTarget> targets) const = 0;
};

/// Which of the network's blocks, those with parameters of their own.
struct BlockPlace {
  int64_t index = 0;   ///< -1: none of them, of a layer outside.
  int64_t blocks = 1;  ///< Of the whole network.
};

/// Where the weight of one output of a linear layer is in its ParameterSet.
struct OutputWeight {
  int64_t rows = 0;           ///< Columns of y.
  int64_t first = 0;          ///< Index of the weight, or of the first of the tensors in its place.
  int64_t tensors = 0;        ///< Number of those, which follow each other; 0: the weight is there.
  int64_t first_adapter = 0;  ///< Index of the first tensor besides the weight,
  int64_t adapters = 0;       ///< and number of those, which follow each other.

  /// Whether other tensors than the weight are there.
  bool has_tensors() const { return tensors > 0 || adapters > 0; }
  /// Index of the first of these tensors, and their number.
  int64_t first_tensor() const { return tensors > 0 ? first : first_adapter; }
  int64_t tensor_count() const { return tensors > 0 ? tensors : adapters; }
  /// After the last index of the weight, or of what is in its place.
  int64_t end() const { return first + (tensors > 0 ? tensors : 1); }
};

/// A linear layer, as a ProductsFactory sees it.
struct LinearLayer {
  ParameterSet* parameters = nullptr;  ///< Outlives the products.
  int64_t weight = 0;                  ///< Index of the first of its weights.
  int64_t outputs = 1;                 ///< Number of its weights, which are stacked as one matrix
                                       ///< unless one of them is replaced.
  std::vector<OutputWeight> weights = {};  ///< By output.
  int64_t in_features = 0;                 ///< Columns of x.
  int64_t bias = -1;                       ///< Index of the first bias, or -1.
  Shard inputs = {};                       ///< Which columns of W, and of x, are here.
  /// How it is sharded: other ranks have other columns of W and x, or other rows of W and columns
  /// of y.
  bool shares_inputs = false;
  bool shares_outputs = false;
  /// Whether Forward adds b: not where another rank does.
  bool adds_bias = true;
  /// See LinearOptions::group.
  std::string group = {};
  BlockPlace block = {};
  DType compute = DType::kF32;
};

/// Makes the products of a model's layers, and owns what these have in common.
class ProductsFactory {
 public:
  virtual ~ProductsFactory() = default;

  /// The tensors that a layer registers and trains in place of its `weight` [out, in]; none where
  /// it has the weight itself. As TechniqueCost::ReplacementsOf has them.
  virtual std::vector<ParameterInfo> ReplacementsOf(const ParameterInfo& /*weight*/) const {
    return {};
  }
  /// Which part of `tensor`, one of these, a rank has that has the part `of_weight` of the weight.
  virtual Shard ShardOfReplacement(const ParameterInfo& /*weight*/, const ParameterInfo& /*tensor*/,
                                   const Shard& /*of_weight*/) const {
    return {};
  }
  /// The weight that tensors of these values, one vector for each of ReplacementsOf, make.
  virtual std::vector<float> WeightFrom(const ParameterInfo& /*weight*/,
                                        const std::vector<std::vector<float>>& /*tensors*/) const {
    return {};
  }
  /// The values of these tensors that make a weight nearest to `values` (Frobenius norm).
  virtual std::vector<std::vector<float>> TensorsNearest(const ParameterInfo& /*weight*/,
                                                         std::span<const float> /*values*/) const {
    return {};
  }

  /// Whether MLPs with a squared ReLU now keep two of each four columns of its result.
  virtual bool PrunesActivations() const { return false; }

  /// The tensors that a layer registers besides its `weight` [out, in], which stays; none where it
  /// has the weight alone. Of weights that are not replaced; as TechniqueCost::AdaptersOf has them.
  virtual std::vector<ParameterInfo> AdaptersOf(const ParameterInfo& /*weight*/) const {
    return {};
  }
  /// The weight of `values` with what tensors of these values, one vector for each of AdaptersOf,
  /// add to it: what an export has.
  virtual std::vector<float> Merged(const ParameterInfo& /*weight*/, std::span<const float> values,
                                    const std::vector<std::vector<float>>& /*tensors*/) const {
    return {values.begin(), values.end()};
  }
  /// The bias of the layer of `weight` with what tensors add to it: what an export has.
  virtual std::vector<float> MergedBias(const ParameterInfo& /*weight*/, std::vector<float> bias,
                                        const std::vector<std::vector<float>>& /*tensors*/) const {
    return bias;
  }

  /// The products of a layer, which this outlives. All layers are made, in the order of the forward
  /// pass, before what is below.
  virtual std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) = 0;

  /// Makes products of the weight of a layer alone, with its bias where it has one.
  using WeightMaker = std::function<std::unique_ptr<WeightProducts>(const LinearLayer& layer)>;
  /// Products of a layer that has AdaptersOf its weight, around those that `weight` makes.
  virtual std::unique_ptr<WeightProducts> MakeAround(const LinearLayer& layer,
                                                     const WeightMaker& weight) {
    return weight(layer);
  }

  /// Says that the layers here are those of the blocks `blocks` in a network of `of` blocks. Other
  /// pipeline ranks have the rest.
  virtual void SetStage(const std::vector<Shard::Range>& blocks, int64_t of) = 0;

  /// Allocates memory for what layers have in common.
  virtual Status Allocate(Context& context) = 0;

  /// Renews what layers have in common, where `what` has changed, before each is packed.
  /// Tensor-parallel ranks call it together.
  virtual Status StartPack(Context& context, Repack what) = 0;
};

/// How products with weights are computed.
struct ProductOptions {
  ProductOptions(DType type,
                 ProductsFactory* made_by = nullptr,  // NOLINT(google-explicit-constructor)
                 const TensorParallel* ranks = nullptr)
      : compute(type), factory(made_by), tensor(ranks) {}

  /// These options with operands of type `compute`.
  ProductOptions Dense() const {
    ProductOptions dense = *this;
    dense.factory = nullptr;
    return dense;
  }
  /// These options outside the blocks, with the products of `made_by` or, where it is null, dense.
  ProductOptions Outside(ProductsFactory* made_by) const {
    ProductOptions own = In({.index = -1});
    own.factory = made_by;
    return own;
  }
  /// These options in a block.
  ProductOptions In(const BlockPlace& place) const {
    ProductOptions own = *this;
    own.block = place;
    return own;
  }

  DType compute;                 ///< Type of inputs and results.
  ProductsFactory* factory;      ///< Makes the products, or none: DenseProducts.
  const TensorParallel* tensor;  ///< The tensor-parallel ranks, or none.
  BlockPlace block = {};         ///< That of the layers.
};

}  // namespace weft::engine
