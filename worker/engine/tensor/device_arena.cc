#include "worker/engine/tensor/device_arena.h"

#include <algorithm>
#include <string>

namespace weft::engine {

Result<std::unique_ptr<DeviceArena>> DeviceArena::New(const Options& options) {
  if (options.device < 0 || options.device >= kernels::cuda::DeviceCount()) {
    // Says which of the reasons it is.
    WEFT_RETURN_IF_ERROR(kernels::cuda::StreamState::Create(options.device).status());
  }
  std::unique_ptr<DeviceArena> arena(new DeviceArena(options));
  if (options.first_chunk_bytes > 0 && !arena->AddChunk(options.first_chunk_bytes)) {
    return ExhaustedError("CUDA device " + std::to_string(options.device) + " has no " +
                          std::to_string(options.first_chunk_bytes) +
                          " bytes left; hint: nvidia-smi shows who holds its memory");
  }
  return arena;
}

bool DeviceArena::AddChunk(size_t bytes) {
  auto chunk = kernels::cuda::DeviceMemory::Allocate(options_.device, bytes);
  if (!chunk.ok()) return false;
  free_.AddChunk(static_cast<char*>(chunk->data()), bytes);
  chunks_.push_back(*std::move(chunk));
  held_bytes_ += static_cast<int64_t>(bytes);
  return true;
}

void* DeviceArena::Take(size_t bytes, int64_t limit_bytes) {
  if (char* at = free_.Take(bytes)) return at;
  const auto fits = [&](size_t chunk) {
    return limit_bytes == 0 || held_bytes_ + static_cast<int64_t>(chunk) <= limit_bytes;
  };
  // Rather a chunk that is small than none.
  const size_t usual = std::max(bytes, options_.chunk_bytes);
  if (!(fits(usual) && AddChunk(usual)) && !(fits(bytes) && AddChunk(bytes))) return nullptr;
  return free_.Take(bytes);
}

void DeviceArena::Give(void* memory, size_t bytes) {
  free_.Give(static_cast<char*>(memory), bytes);
}

bool DeviceArena::IsFree(const void* at, size_t bytes) const {
  return free_.IsFree(static_cast<const char*>(at), bytes);
}

}  // namespace weft::engine
