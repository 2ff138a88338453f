#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

inline constexpr int kSumsAcross = kWarp;
inline constexpr int kSumsDown = kBlockThreads / kSumsAcross;

/// sums[part * width + c] (+)= the sum of column c over rows [part, part + 1) * part_rows. A block
/// has kSumsAcross * kCount columns (x) of one part (y).
template <class T, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ColumnSumsKernel(StridedRows<const T> x, int64_t rows, int64_t part_rows, int64_t width,
                     bool accumulate, float* sums) {
  constexpr int kColumns = kSumsAcross * kCount;
  const int64_t first = int64_t{blockIdx.x} * kColumns;
  const int64_t column = first + int64_t{threadIdx.x} * kCount;
  const int64_t begin = int64_t{blockIdx.y} * part_rows;
  const int64_t end = begin + part_rows < rows ? begin + part_rows : rows;
  float own[kCount] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kSumsDown) {
      const Packed<T, kCount> values = LoadPacked<kCount>(x.At(row, column));
#pragma unroll
      for (int k = 0; k < kCount; ++k) own[k] += values[k];
    }
  }
  WEFT_SHARED(shared, float[kSumsDown][kColumns]);
#pragma unroll
  for (int k = 0; k < kCount; ++k) shared[threadIdx.y][threadIdx.x * kCount + k] = own[k];
  __syncthreads();
  float* to = sums + int64_t{blockIdx.y} * width;
  for (int c = static_cast<int>(threadIdx.y * kSumsAcross + threadIdx.x);
       c < kColumns && first + c < width; c += kBlockThreads) {
    float sum = accumulate ? to[first + c] : 0.0f;
#pragma unroll
    for (int y = 0; y < kSumsDown; ++y) sum += shared[y][c];
    to[first + c] = sum;
  }
}

template <class T>
Status LaunchColumnSums(const Stream& stream, std::string_view op, StridedRows<const T> x,
                        int64_t rows, int64_t part_rows, int64_t width, bool aligned,
                        bool accumulate, float* sums) {
  const auto launch = [&]<int kCount>() {
    return Launch(
        stream, op,
        {.grid = {CeilDiv(width, int64_t{kSumsAcross} * kCount), CeilDiv(rows, part_rows)},
         .block = {kSumsAcross, kSumsDown}},
        ColumnSumsKernel<T, kCount>, x, rows, part_rows, width, accumulate, sums);
  };
  // A row of width 1 has no second column for a wide access.
  return aligned && width % kWide<T> == 0 ? launch.template operator()<kWide<T>>()
                                          : launch.template operator()<1>();
}

/// sums (+)= the sums of x [rows, width] over its rows, in a fixed order; at least one row. Uses
/// the stream's scratch memory.
template <class T>
Status ColumnSums(const Stream& stream, std::string_view op, const TensorView& x, bool accumulate,
                  float* sums) {
  constexpr int64_t kLeastRows = 64;  // Of a part.
  const int64_t rows = x.shape[0], width = x.shape[1];
  const int64_t columns = CeilDiv(width, int64_t{kSumsAcross} * kWide<T>);
  const int64_t most = std::max<int64_t>(4 * stream.cuda->limits().multiprocessors / columns, 1);
  const int64_t parts = std::min<int64_t>(most, CeilDiv(rows, kLeastRows));
  const int64_t part_rows = CeilDiv(rows, parts);
  const bool aligned = RowsAligned16(x);
  if (parts == 1) {
    return LaunchColumnSums(stream, op, RowsOf<const T>(x), rows, part_rows, width, aligned,
                            accumulate, sums);
  }
  const int64_t used = CeilDiv(rows, part_rows);
  WEFT_ASSIGN_OR_RETURN(float* partial, ScratchOf<float>(stream, op, used * width));
  WEFT_RETURN_IF_ERROR(LaunchColumnSums(stream, op, RowsOf<const T>(x), rows, part_rows, width,
                                        aligned, false, partial));
  return LaunchColumnSums(stream, op, StridedRows<const float>{partial, width}, used, used, width,
                          width % kWide<float> == 0, accumulate, sums);
}

}  // namespace weft::kernels::cuda
