#pragma once

// The declarations of kernels/cuda/shared_memory.h for the host execution.

#include "tests/gpu/host/executor.h"

namespace weft::kernels::cuda {

template <class T>
T* DynamicShared() {
  return static_cast<T*>(host_cuda::DynamicShared());
}

template <class T>
T& SharedVariable(const void* tag) {
  return *static_cast<T*>(host_cuda::SharedVariable(tag, sizeof(T), alignof(T)));
}

}  // namespace weft::kernels::cuda

#define WEFT_SHARED(name, ...)                                                          \
  auto& name = ::weft::kernels::cuda::SharedVariable<__VA_ARGS__>([]() -> const void* { \
    static const char tag = 0;                                                          \
    return &tag;                                                                        \
  }())
