#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/linear/linear.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/techniques/sub_networks/partition.h"

namespace weft::engine {

/// A sub-layer of a block, whose passes compute the units of one rank.
struct DividedSubLayer {
  std::string site;     ///< The weight that ends it.
  int64_t units = 0;    ///< Heads of keys and values, or neurons.
  OwnUnits own = {};    ///< Units that passes compute; none: all.
  int64_t version = 0;  ///< Of `own`: another one for another value.

  bool whole() const { return own.own.empty(); }
};

/// Products of a layer of a sub-layer, without the units that this does not compute: the products
/// before them have their rows of W alone, that behind them its own columns, whose sum is scaled
/// (OwnUnits::Scale). Gradients of what is left out are zero. All units: dense products.
class NarrowProducts : public WeightProducts {
 public:
  /// `in` outlives this.
  NarrowProducts(const LinearLayer& layer, const DividedSubLayer* in);

  int64_t in_features(int64_t all) const override;
  int64_t out_features(int64_t all) const override;

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
  /// Rows of the stacked weights, or units of their columns, that products have, ascending.
  std::vector<int32_t> OwnIndices() const;
  Status SetUnits(Context& context);
  /// A matrix whose columns are divided by units as one with a row for each unit, in groups; of
  /// divided rows as it is.
  TensorView Grouped(const TensorView& matrix, int64_t units) const;
  TensorView Bias() const;
  /// x times the scale, in workspace.
  Result<Tensor> Scaled(Context& context, const Tensor& x) const;
  Status RowsGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                      const WeightGradientTarget& to) const;
  Status ColumnsGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                         const WeightGradientTarget& to) const;
  int64_t own_columns() const { return in_features_ / in_->units * in_->own.count; }

  const DividedSubLayer* in_;
  const ParameterSet* parameters_;
  std::vector<int64_t> weights_;  ///< Index of each output's,
  std::vector<int64_t> rows_of_;  ///< and its rows.
  int64_t bias_;                  ///< Of the first output, or -1.
  int64_t in_features_;
  bool ends_;  ///< Columns are divided.
  DType compute_;
  DenseProducts dense_;
  bool has_dense_ = false;  ///< The copies of dense products are there.

  int64_t version_ = -1;  ///< Of the units below.
  std::vector<int32_t> own_;
  Tensor indices_;   ///< own_, i32
  Tensor scale_;     ///< [1] f32; of divided columns.
  Tensor matrix_;    ///< The rows or columns of W, of its type.
  Tensor own_bias_;  ///< [own rows] f32
  std::unique_ptr<kernels::PackedWeight> packed_;
  ExternalBytes held_;
};

}  // namespace weft::engine
