#include <algorithm>
#include <string>

#include <cuda_runtime_api.h>

#include "common/check.h"
#include "kernels/cuda/pinned_arena.h"
#include "kernels/cuda/scoped_device.h"

namespace weft::kernels::cuda {
namespace {

std::string Locking(size_t bytes) {
  return "locking " + std::to_string(bytes) + " bytes of host memory";
}

}  // namespace

PinnedArena::~PinnedArena() {
  WEFT_CHECK(used_.empty(), "pinned memory is still used");
  UnlockUnused();
}

PinnedArena& PinnedArena::OfProcess() {
  // Never destroyed: the process may end after the driver.
  static auto* const arena = new PinnedArena;
  return *arena;
}

Result<void*> PinnedArena::Take(size_t bytes) {
  const size_t size = std::max<size_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  Used used = {size, 0};
  WEFT_RETURN_IF_CUDA_ERROR(Locking(bytes), cudaGetDevice(&used.device));
  const std::lock_guard lock(mutex_);
  char* piece = free_.Take(size);
  if (piece == nullptr) {
    WEFT_RETURN_IF_ERROR(AddChunk(size));
    piece = free_.Take(size);
  }
  used_[piece] = used;
  return static_cast<void*>(piece);
}

void PinnedArena::Give(void* piece) {
  if (piece == nullptr) return;
  auto* const at = static_cast<char*>(piece);
  Used used;
  {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(at);
    WEFT_CHECK(found != used_.end(), "what is given back is no pinned memory in use");
    used = found->second;
    used_.erase(found);
  }
  {
    const ScopedDevice use(used.device);
    // A failure here is one of earlier work, which Synchronize() tells.
    (void)cudaDeviceSynchronize();
  }
  const std::lock_guard lock(mutex_);
  free_.Give(at, used.bytes);
}

size_t PinnedArena::locked_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& chunk : chunks_) bytes += chunk.second;
  return bytes;
}

Status PinnedArena::AddChunk(size_t bytes) {
  UnlockUnused();
  const size_t usual = std::max(bytes, chunk_bytes_);
  void* chunk = nullptr;
  size_t size = usual;
  cudaError_t error = cudaMallocHost(&chunk, usual);
  if (error == cudaErrorMemoryAllocation && bytes < usual) {
    // Rather a chunk that is small than none.
    size = bytes;
    error = cudaMallocHost(&chunk, bytes);
  }
  if (error != cudaSuccess) return RuntimeError(Locking(bytes), "cudaMallocHost", error);
  chunks_[static_cast<char*>(chunk)] = size;
  free_.AddChunk(static_cast<char*>(chunk), size);
  return OkStatus();
}

void PinnedArena::UnlockUnused() {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
    const auto [at, bytes] = *chunk;
    if (!free_.IsFree(at, bytes)) {
      ++chunk;
      continue;
    }
    free_.RemoveChunk(at, bytes);
    (void)cudaFreeHost(at);
    chunk = chunks_.erase(chunk);
  }
}

}  // namespace weft::kernels::cuda
