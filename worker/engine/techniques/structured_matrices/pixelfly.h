#pragma once

#include <cstdint>
#include <optional>

#include "kernels/block_sparse/block_pattern.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"
#include "worker/engine/techniques/structured_matrices/structured_weight.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// Which part of a tensor of a Pixelated Butterfly a tensor-parallel rank has that has the part
/// `of_weight` of W, whole lines of the grid: of B the blocks in these lines, of the factor that
/// shares their side the same, and all of the other factor.
Shard ShardOfPixelfly(const PixelflySizes& size, const ParameterInfo& tensor,
                      const Shard& of_weight);

/// Where the blocks of B are, or those of `held`, a part of B's tensor that ShardOfPixelfly says:
/// in the grid of the rows that are here or, with `columns`, of the columns.
kernels::BlockPattern PatternOf(const PixelflySizes& size, const Shard& held, bool columns);

/// Products with a Pixelated Butterfly W = B + U V (Chen et al. 2021, arXiv 2112.00029): with the
/// blocks of B, and with V and then U.
class Pixelfly : public StructuredWeight {
 public:
  /// The tensors of the weight are parameters from `first` on. `parameters` and `pattern`, which is
  /// PatternOf its sizes, outlive this. `rank` is that of U V; 0: there are no U and V.
  Pixelfly(ParameterSet* parameters, int64_t first, const kernels::BlockPattern* pattern,
           int64_t rank, DType compute);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const TensorView& bias,
                 const Tensor& y) const override;
  int64_t Middle() const override { return rank_; }
  Status MiddleGradient(Context& context, const Tensor& dy, const Tensor& dmiddle) const override;
  Status InputGradient(Context& context, const Tensor& dy, const Tensor& dmiddle, const Tensor& dx,
                       bool accumulate) const override;
  Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dmiddle,
                        const WeightGradientTarget& to) const override;

 private:
  /// x Vᵀ
  Result<Tensor> MiddleOf(Context& context, const Tensor& x) const;

  const ParameterSet* parameters_;
  int64_t blocks_;  ///< Index of the parameter.
  int64_t rank_;
  const kernels::BlockPattern* pattern_;
  std::optional<PackedParameter> in_;   ///< V, where the rank is not 0.
  std::optional<PackedParameter> out_;  ///< U, likewise.
};

}  // namespace weft::engine
