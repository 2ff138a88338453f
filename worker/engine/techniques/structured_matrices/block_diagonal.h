#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/packed_parameter.h"

namespace weft::engine {

/// Products with a block-diagonal matrix: its blocks, each [rows, columns], lie one under the other
/// in a parameter. Operands are of the compute type, and each block reads and writes columns of its
/// own.
class BlockDiagonal {
 public:
  /// Multiplies by parameter `index`. `parameters` outlives this.
  BlockDiagonal(ParameterSet* parameters, int64_t index, int64_t blocks, DType compute);

  Status Pack(Context& context, Repack what);

  /// y = x Bᵀ + bias: x [n, In()], bias [Out()] f32 or none, y [n, Out()].
  Status Forward(Context& context, const Tensor& x, const TensorView& bias, const Tensor& y) const;

  /// dx = dy B, or dx += dy B.
  Status InputGradient(Context& context, const Tensor& dy, const Tensor& dx,
                       bool accumulate = false) const;

  /// dblocks = dyᵀ x of each block, in the layout of the parameter, and dbias; f32, or none; or +=.
  Status WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                        const TensorView& dblocks, const TensorView& dbias, bool accumulate) const;

  int64_t In() const { return blocks() * columns_; }
  int64_t Out() const { return blocks() * rows_; }
  /// Numbers of all blocks.
  int64_t Elements() const { return Out() * columns_; }

 private:
  int64_t blocks() const { return static_cast<int64_t>(packed_.size()); }

  int64_t rows_;  ///< Of a block, as columns_.
  int64_t columns_;
  std::vector<PackedParameter> packed_;  ///< By block.
};

}  // namespace weft::engine
