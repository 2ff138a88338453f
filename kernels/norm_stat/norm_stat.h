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

/// Sum of squares (in f64, over blocks of fixed size in fixed order: the same for any number of
/// threads) and number of NaN or infinite elements, over all tensors.
struct NormStatArgs {
  std::span<const NormTensor> tensors = {};
  double* sum_of_squares = nullptr;  ///< host memory, written
  int64_t* non_finite = nullptr;     ///< host memory, written
};

WEFT_DEVICE_OP(NormStat, NormStatArgs)

}  // namespace weft::kernels
