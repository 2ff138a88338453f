#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/cpu/aligned_memory.h"

namespace weft::kernels::cpu {

/// Memory for `elements` of T, uninitialized and on cache lines of its own, that stays with the
/// thread for its next call with the same `Use`, a type that names what it is for.
template <class Use, class T>
T* ThreadScratch(int64_t elements) {
  thread_local AlignedMemory memory;
  thread_local size_t size = 0;
  const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
  if (bytes > size) {
    size = 0;
    memory.reset();
    memory = AllocateAligned(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    size = bytes;
  }
  return static_cast<T*>(memory.get());
}

}  // namespace weft::kernels::cpu
