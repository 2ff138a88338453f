#pragma once

#include <cstdint>
#include <span>

#include "kernels/stream.h"

namespace weft::kernels {

/// One tensor of a multi-tensor reduction.
struct NormTensor {
  const float* data = nullptr;
  int64_t count = 0;
  const BFloat16* bf16_data = nullptr;  ///< Instead of `data`.
};

/// Elements of a block of a tensor on a CPU.
inline constexpr int64_t kNormStatBlock = 16384;

/// Sum of squares (in f64, over blocks of fixed size in fixed order: the same for any number of
/// threads) and number of NaN or infinite elements, over all tensors. Like any output the results
/// are there when the stream has come so far, in memory that its device can write: its own or, of a
/// CUDA device, also pinned host memory.
struct NormStatArgs {
  std::span<const NormTensor> tensors = {};
  double* sum_of_squares = nullptr;
  int64_t* non_finite = nullptr;
};

WEFT_DEVICE_OP(NormStat, NormStatArgs)

}  // namespace weft::kernels
