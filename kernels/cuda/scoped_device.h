#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

/// Returns from the function, as a Status, when a call of the CUDA runtime fails.
#define WEFT_RETURN_IF_CUDA_ERROR(op, call)                                 \
  do {                                                                      \
    if (const cudaError_t weft_error_ = (call); weft_error_ != cudaSuccess) \
      return RuntimeError(op, #call, weft_error_);                          \
  } while (false)

namespace weft::kernels::cuda {

/// Makes a device the current one of this thread.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) {
    if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = device;
    if (previous_ != device) status_ = cudaSetDevice(device);
    changed_ = previous_ != device;
  }
  ~ScopedDevice() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  cudaError_t status() const { return status_; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace weft::kernels::cuda
