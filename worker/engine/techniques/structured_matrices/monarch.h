#pragma once

#include <cstdint>

#include "worker/engine/techniques/structured_matrices/block_diagonal.h"
#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"
#include "worker/engine/techniques/structured_matrices/structured_weight.h"

namespace weft::engine {

/// Which part of a factor a rank has that has some rows or some columns of W, whole blocks of
/// these: `side` kInput or kOutput. Without those of other ranks W is a smaller grid of blocks of
/// the same rank, so that a rank multiplies by its part alone.
Shard ShardOfFactor(const MonarchSizes& size, FactorSide side, const Shard& of_weight);

/// Products with a Monarch matrix W [out, in] (Dao et al. 2022, arXiv 2204.00595), which is never
/// made: with its two block-diagonal factors, and a permutation of columns between them. Its layout
/// is that of MonarchSizes.
class Monarch : public StructuredWeight {
 public:
  /// Parameters `first` and the next one are the factors, or the parts of them that are here;
  /// `size`: that of the whole matrix. `parameters` outlives this.
  Monarch(ParameterSet* parameters, int64_t first, const MonarchSizes& size, DType compute);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const TensorView& bias,
                 const Tensor& y) const override;
  int64_t Middle() const override { return first_.Out(); }
  Status MiddleGradient(Context& context, const Tensor& dy, const Tensor& dmiddle) const override;
  Status InputGradient(Context& context, const Tensor& /*dy*/, const Tensor& dmiddle,
                       const Tensor& dx, bool accumulate) const override {
    return first_.InputGradient(context, dmiddle, dx, accumulate);
  }
  Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dmiddle,
                        const WeightGradientTarget& to) const override;

 private:
  /// What the second factor reads.
  Result<Tensor> MiddleOf(Context& context, const Tensor& x) const;

  int64_t input_blocks_;   ///< Columns of the grid of blocks here,
  int64_t output_blocks_;  ///< and rows.
  BlockDiagonal first_;
  BlockDiagonal second_;
};

}  // namespace weft::engine
