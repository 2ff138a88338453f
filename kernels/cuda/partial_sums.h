#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"

namespace weft::kernels::cuda {

inline constexpr int kSumColumns = 32;
inline constexpr int kSumRows = 8;

/// Sums over rows are made in two stages, which gives the same bits each time: blocks write partial
/// sums [parts, 2, width], then this adds them up, in a fixed order, into two vectors of `width`;
/// each may be nullptr.
template <class Float>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    AddPartialSumsKernel(const Float* partial, int parts, int64_t width, Float* first,
                         Float* second) {
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  Float sum = 0;
  if (column < 2 * width) {
    for (int part = static_cast<int>(threadIdx.y); part < parts; part += kSumRows) {
      sum += partial[part * 2 * width + column];
    }
  }
  WEFT_SHARED(sums, Float[kSumRows][kSumColumns]);
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= 2 * width) return;
  for (int row = 1; row < kSumRows; ++row) sum += sums[row][threadIdx.x];
  if (column < width) {
    if (first != nullptr) first[column] += sum;
  } else if (second != nullptr) {
    second[column - width] += sum;
  }
}

inline Status AddPartialSums(const Stream& stream, std::string_view op, const float* partial,
                             int parts, int64_t width, float* first, float* second) {
  return Launch(stream, op,
                {.grid = {CeilDiv(2 * width, kSumColumns)}, .block = {kSumColumns, kSumRows}},
                AddPartialSumsKernel<float>, partial, parts, width, first, second);
}

}  // namespace weft::kernels::cuda
