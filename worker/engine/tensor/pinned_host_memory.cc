#include "worker/engine/tensor/pinned_host_memory.h"

#include <utility>

namespace weft::engine {

void* PinnedHostMemory::Take(size_t bytes, int64_t limit_bytes) {
  const auto size = static_cast<int64_t>(bytes);
  if (limit_bytes > 0 && held_bytes_ + size > limit_bytes) return nullptr;
  auto piece = kernels::cuda::PinnedMemory::Allocate(bytes);
  if (!piece.ok()) return nullptr;
  void* const memory = piece->data();
  pieces_.emplace(memory, *std::move(piece));
  held_bytes_ += size;
  ++system_allocations_;
  return memory;
}

void PinnedHostMemory::Give(void* memory, size_t bytes) {
  pieces_.erase(memory);
  held_bytes_ -= static_cast<int64_t>(bytes);
}

}  // namespace weft::engine
