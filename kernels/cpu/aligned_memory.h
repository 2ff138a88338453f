#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace weft::kernels::cpu {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<void, FreeMemory>;

/// From this size on blocks are on huge pages, which spares the TLB in kernels that stream.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Uninitialized memory on cache lines of its own; null when there is none.
inline AlignedMemory AllocateAligned(size_t bytes) {
  constexpr size_t kCacheLine = 64;
  void* memory = nullptr;
  if (posix_memalign(&memory, bytes >= kHugePageBytes ? kHugePageBytes : kCacheLine, bytes) != 0) {
    return nullptr;
  }
  // Advice only: without huge pages everything works, slower.
  if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  return AlignedMemory(memory);
}

}  // namespace weft::kernels::cpu
