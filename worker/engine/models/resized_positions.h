#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// Learned positions of images of another size than those of the table [1 + table_side^2, width]:
/// its rows are resized bilinearly (AxisMap::Resized), except that of the class token. What the
/// backward pass adds to the table is the gradient of that.
class ResizedPositions {
 public:
  /// `side`: patches of a side of the images. `compute`: type of the result.
  ResizedPositions(ParameterSet* parameters, int64_t table, int64_t table_side, int64_t side,
                   DType compute);

  /// Patches of an image.
  int64_t patches() const { return rows_ - 1; }

  /// The rows of `positions`, [count] i32 from 0 to patches(): [count, width] in the compute type.
  Result<Value> Forward(Context& context, Tape& tape, const Tensor& positions) const;

 private:
  const ParameterSet* parameters_;
  int64_t table_;
  int64_t rows_;  ///< Of the resized table.
  DType compute_;
  std::vector<float> map_;         ///< [rows of the resized table, rows of the table]
  std::vector<float> transposed_;  ///< The same the other way round.
};

}  // namespace weft::engine
