#include "worker/engine/tensor/memory_source.h"

#include <cstdlib>

#include "kernels/cpu/aligned_memory.h"

namespace weft::engine {

void* HostMemory::Take(size_t bytes, int64_t limit_bytes) {
  const auto size = static_cast<int64_t>(bytes);
  if (limit_bytes > 0 && held_bytes_ + size > limit_bytes) return nullptr;
  void* memory = kernels::cpu::AllocateAligned(bytes).release();
  if (memory == nullptr) return nullptr;
  held_bytes_ += size;
  ++system_allocations_;
  return memory;
}

void HostMemory::Give(void* memory, size_t bytes) {
  held_bytes_ -= static_cast<int64_t>(bytes);
  std::free(memory);
}

}  // namespace weft::engine
