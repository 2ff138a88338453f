#include "worker/engine/tensor/device_arena.h"

#include <algorithm>
#include <iterator>
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
  auto* at = static_cast<char*>(chunk->data());
  chunks_.push_back(*std::move(chunk));
  chunk_starts_.insert(at);
  held_bytes_ += static_cast<int64_t>(bytes);
  AddFree(at, bytes);
  return true;
}

void* DeviceArena::Take(size_t bytes, int64_t limit_bytes) {
  auto best = free_by_size_.lower_bound({bytes, nullptr});
  if (best == free_by_size_.end()) {
    const auto fits = [&](size_t chunk) {
      return limit_bytes == 0 || held_bytes_ + static_cast<int64_t>(chunk) <= limit_bytes;
    };
    // Rather a chunk that is small than none.
    const size_t usual = std::max(bytes, options_.chunk_bytes);
    if (!(fits(usual) && AddChunk(usual)) && !(fits(bytes) && AddChunk(bytes))) return nullptr;
    best = free_by_size_.lower_bound({bytes, nullptr});
  }
  const auto [size, at] = *best;
  RemoveFree(free_.find(at));
  if (size > bytes) AddFree(at + bytes, size - bytes);
  return at;
}

void DeviceArena::Give(void* memory, size_t bytes) {
  AddFree(static_cast<char*>(memory), bytes);
}

bool DeviceArena::IsFree(const void* at, size_t bytes) const {
  const auto* begin = static_cast<const char*>(at);
  auto piece = free_.upper_bound(const_cast<char*>(begin));
  if (piece == free_.begin()) return false;
  --piece;
  return begin + bytes <= piece->first + piece->second;
}

void DeviceArena::AddFree(char* at, size_t bytes) {
  const auto next = free_.find(at + bytes);
  if (next != free_.end() && !chunk_starts_.contains(at + bytes)) {
    bytes += next->second;
    RemoveFree(next);
  }
  if (const auto after = free_.lower_bound(at);
      after != free_.begin() && !chunk_starts_.contains(at)) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      RemoveFree(before);
    }
  }
  free_[at] = bytes;
  free_by_size_.insert({bytes, at});
}

void DeviceArena::RemoveFree(std::map<char*, size_t>::iterator piece) {
  free_by_size_.erase({piece->second, piece->first});
  free_.erase(piece);
}

}  // namespace weft::engine
