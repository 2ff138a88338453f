#pragma once

// Operations on rows that need not follow each other without gaps, element by element.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// A matrix whose rows may be strided.
template <class T>
struct StridedRows {
  T* data;  ///< nullptr where there is no matrix
  int64_t stride;

  __device__ T* At(int64_t row, int64_t column) const { return data + row * stride + column; }
};

template <class T>
StridedRows<T> RowsOf(const TensorView& view) {
  return {view ? view.As<std::remove_const_t<T>>() : nullptr, view.row_stride};
}

/// Whether all rows of these matrices begin at multiples of 16 bytes, as wide accesses need.
template <class... Views>
bool RowsAligned16(const Views&... views) {
  return ((Aligned16(views.data) &&
           static_cast<size_t>(views.row_stride) * DTypeSize(views.dtype) % 16 == 0) &&
          ...);
}

/// Applies `map` to `rows` rows of `width` elements. A map has
///   template <int kCount> __device__ void Apply(int64_t row, int64_t column) const;
/// for kCount elements from that column on, which reads all it needs of them before it writes any.
template <int kCount, class Map>
__global__ void __launch_bounds__(kBlockThreads)
    RowMapKernel(Map map, int64_t rows, int64_t width) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t step = int64_t{gridDim.y} * blockDim.x * kCount;
  int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  for (; column + kCount <= width; column += step) map.template Apply<kCount>(row, column);
  // Fewer than kCount elements at the end of the row come to one thread.
  for (; column < width; ++column) map.template Apply<1>(row, column);
}

/// Runs `map`, kCount elements at a time when `aligned` (RowsAligned16 of all it reads and writes).
template <int kCount, class Map>
Status LaunchRowMap(const Stream& stream, std::string_view op, const Map& map, int64_t rows,
                    int64_t width, bool aligned) {
  // Threads of a block: a power of two along the row, the others on further rows.
  constexpr unsigned kThreads = kBlockThreads, kMostTiles = 65535;
  const int64_t accesses = CeilDiv(width, aligned ? kCount : 1);
  unsigned across = 1;
  while (across < kThreads && across < accesses) across *= 2;
  const unsigned down = kThreads / across;
  return Launch(stream, op,
                {.grid = {CeilDiv(rows, down), std::min(CeilDiv(accesses, across), kMostTiles)},
                 .block = {across, down}},
                aligned ? RowMapKernel<kCount, Map> : RowMapKernel<1, Map>, map, rows, width);
}

}  // namespace weft::kernels::cuda
