#pragma once

#include <cuda_runtime.h>

namespace weft::kernels::cuda {

/// Many tensors in one launch, whose blocks are the chunks of all of them. A kernel takes the table
/// as a parameter (const __grid_constant__), so that nothing is copied to the device first. An
/// entry says with `int first_chunk` where its own chunks begin.
template <class Entry>
struct TensorTable {
  /// More save no time worth the larger parameters of each launch.
  static constexpr int kMostTensors = 64;
  Entry tensors[kMostTensors];
  int count = 0;

  /// Which tensor the chunk is one of.
  __device__ int Find(int chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (tensors[middle].first_chunk <= chunk) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace weft::kernels::cuda
