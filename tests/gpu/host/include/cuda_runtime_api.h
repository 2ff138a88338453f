#pragma once

// Stands in for the header of the CUDA toolkit, as cuda_runtime.h does: calls of host code alone.

#include <cuda_runtime.h>

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.

inline cudaError_t cudaDeviceSynchronize() {
  if (auto refused = weft::host_cuda::RefuseInCapture("the device is waited for");
      !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  weft::host_cuda::SynchronizeAll();
  return cudaSuccess;
}

// NOLINTEND(readability-identifier-naming)
