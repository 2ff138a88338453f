#pragma once

// Shared memory of a block, declared in this one way so that tests can give each variable bounds,
// poison it and watch it (tests/gpu/host/include/kernels/cuda/shared_memory.h replaces it there).

#include <cuda_runtime.h>

namespace weft::kernels::cuda {

// Holds raw bytes, since shared variables cannot have constructors.
template <class T>
struct SharedStorage {
  using Type = T;
  alignas(T) unsigned char bytes[sizeof(T)];
};

/// The launch's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(128) unsigned char weft_dynamic_shared[];
  return reinterpret_cast<T*>(weft_dynamic_shared);
}

}  // namespace weft::kernels::cuda

/// Declares a shared variable `name` of the type that follows: WEFT_SHARED(sums, float[32]);
#define WEFT_SHARED(name, ...)                                                 \
  __shared__ ::weft::kernels::cuda::SharedStorage<__VA_ARGS__> name##_storage; \
  auto& name = reinterpret_cast<typename decltype(name##_storage)::Type&>(name##_storage.bytes)
