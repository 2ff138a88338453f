#pragma once

#include <cstdint>

#include "kernels/cuda/cudnn_library.h"

namespace weft::host_cuda {

// A cuDNN that computes graphs by definition, for tests: what matters is which calls are refused.
// It replaces the library that LoadCudnn() finds; what it computes is work of its stream.

/// Plans made and run since the start of the process.
struct CudnnCalls {
  int64_t plans = 0;
  int64_t runs = 0;
};
CudnnCalls CountCudnnCalls();

/// The version it says it has from now on; 0: it is not there. Returns the one before.
size_t SetCudnnVersion(size_t version);

/// Descriptors that were not destroyed.
int64_t CudnnDescriptorsAlive();

}  // namespace weft::host_cuda
