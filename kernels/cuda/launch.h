#pragma once

// How operations start kernels. No <<<>>>: the same source compiles as plain C++ for the tests.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <cuda_runtime.h>

#include "common/status.h"
#include "kernels/cuda/device.h"
#include "kernels/stream.h"

namespace weft::kernels::cuda {

/// A failed call of the CUDA runtime on behalf of `op`.
Status RuntimeError(std::string_view op, std::string_view call, cudaError_t error);

/// Size of a launch, and its dynamic shared memory.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

/// A block of most kernels, in threads.
inline constexpr int kBlockThreads = 256;

inline unsigned CeilDiv(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

/// Enqueues `kernel` on the stream. Parameters are passed by value, up to 32,764 bytes in all; a
/// launch without blocks does nothing. Errors carry the name of the operation.
template <class... Params, class... Args>
Status Launch(const Stream& stream, std::string_view op, const LaunchShape& shape,
              void (*kernel)(Params...), Args&&... args) {
  // A kernel gets 48 KiB without asking. Up to 16 of them are its static variables.
  constexpr size_t kWithoutAsking = 32 << 10;
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return OkStatus();
  if (shape.shared_bytes > kWithoutAsking) {
    const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (allowed != cudaSuccess) return RuntimeError(op, "cudaFuncSetAttribute", allowed);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.cuda->handle();
  const cudaError_t launched =
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
  return launched == cudaSuccess ? OkStatus() : RuntimeError(op, "launch", launched);
}

/// Scratch memory for `count` elements of T; see StreamState::Scratch.
template <class T>
Result<T*> ScratchOf(const Stream& stream, std::string_view op, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(void* memory,
                        stream.cuda->Scratch(op, static_cast<size_t>(count) * sizeof(T)));
  return static_cast<T*>(memory);
}

}  // namespace weft::kernels::cuda
