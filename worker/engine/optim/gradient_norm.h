#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/norm_stat/norm_stat.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// What NormStat says of some numbers, in memory that kernels write.
struct NormSums {
  double squares = 0;
  int64_t non_finite = 0;  ///< NaN or infinite elements; squares mean nothing when there are any.

  double Norm() const { return std::sqrt(squares); }
};

/// Enqueues that *sums, memory of the stream's device, becomes the sums over `tensors`.
Status Measure(Context& context, const std::vector<kernels::NormTensor>& tensors, NormSums* sums);

/// All elements of an f32 or bf16 tensor.
kernels::NormTensor NormTensorOf(const TensorView& view);

/// Enqueues the sums over the gradients of those parts that this rank counts.
Status MeasureGradients(Context& context, const ParameterSet& parameters,
                        std::span<const ParameterPart> parts, NormSums* sums);

/// Enqueues the sums over the gradients that the optimizer will see; of sharded parameters over
/// those that this rank counts.
Status MeasureGradients(Context& context, const ParameterSet& parameters, NormSums* sums);

/// The gradients whose sums MeasureGradients takes where they are in a file, as elements of
/// gradients(): of `parts` that this rank counts, or of all where there are none.
std::vector<ParameterSet::Range> CountedGradients(const ParameterSet& parameters,
                                                  std::span<const ParameterPart> parts);

/// The same sums, with the same bits, of tensors on a CPU that come piece by piece.
class NormStream {
 public:
  /// More of a tensor: pieces of f32 may end anywhere, of bf16 at its end alone.
  Status Add(const kernels::NormTensor& piece);
  /// It has ended.
  Status EndTensor();
  /// Sums over the tensors that have ended.
  const NormSums& sums() const { return sums_; }

 private:
  Status AddBlocks(const kernels::NormTensor& tensor);

  std::vector<float> begun_;  ///< Of a block.
  NormSums sums_;
};

}  // namespace weft::engine
