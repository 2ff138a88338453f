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
  for (const auto& chunk : chunks_) (void)cudaFreeHost(chunk.first);
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
  }
  {
    const ScopedDevice use(used.device);
    // A failure here is one of earlier work, which Synchronize() reports.
    (void)cudaDeviceSynchronize();
  }
  const std::lock_guard lock(mutex_);
  used_.erase(at);
  free_.Give(at, used.bytes);
  if (used_.empty()) UnlockOutgrown();
}

size_t PinnedArena::locked_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& chunk : chunks_) bytes += chunk.second.bytes;
  return bytes;
}

Status PinnedArena::AddChunk(size_t bytes) {
  for (auto& [at, chunk] : chunks_) {
    if (free_.IsFree(at, chunk.bytes)) chunk.outgrown = true;
  }
  const size_t usual = std::max(bytes, chunk_bytes_);
  void* memory = nullptr;
  size_t size = usual;
  cudaError_t error = cudaMallocHost(&memory, usual);
  if (error == cudaErrorMemoryAllocation && bytes < usual) {
    // Rather a chunk that is small than none.
    size = bytes;
    error = cudaMallocHost(&memory, bytes);
  }
  if (error != cudaSuccess) return RuntimeError(Locking(bytes), "cudaMallocHost", error);
  auto* const at = static_cast<char*>(memory);
  chunks_[at] = {size};
  free_.AddChunk(at, size);
  return OkStatus();
}

void PinnedArena::UnlockOutgrown() {
  for (auto next = chunks_.begin(); next != chunks_.end();) {
    const auto chunk = next++;
    if (!chunk->second.outgrown) continue;
    free_.RemoveChunk(chunk->first, chunk->second.bytes);
    (void)cudaFreeHost(chunk->first);
    chunks_.erase(chunk);
  }
}

}  // namespace weft::kernels::cuda
