#include "kernels/cuda/free_pieces.h"

#include <iterator>

#include "common/check.h"

namespace weft::kernels::cuda {

void FreePieces::AddChunk(char* at, size_t bytes) {
  chunk_starts_.insert(at);
  Give(at, bytes);
}

void FreePieces::RemoveChunk(char* at, size_t bytes) {
  const auto piece = free_.find(at);
  WEFT_CHECK(piece != free_.end() && piece->second == bytes, "a chunk in use is kept");
  Remove(piece);
  chunk_starts_.erase(at);
}

char* FreePieces::Take(size_t bytes) {
  const auto best = free_by_size_.lower_bound({bytes, nullptr});
  if (best == free_by_size_.end()) return nullptr;
  const auto [size, at] = *best;
  Remove(free_.find(at));
  if (size > bytes) Give(at + bytes, size - bytes);
  return at;
}

void FreePieces::Give(char* at, size_t bytes) {
  const auto next = free_.find(at + bytes);
  if (next != free_.end() && !chunk_starts_.contains(at + bytes)) {
    bytes += next->second;
    Remove(next);
  }
  if (const auto after = free_.lower_bound(at);
      after != free_.begin() && !chunk_starts_.contains(at)) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      Remove(before);
    }
  }
  free_[at] = bytes;
  free_by_size_.insert({bytes, at});
}

bool FreePieces::IsFree(const char* at, size_t bytes) const {
  auto piece = free_.upper_bound(const_cast<char*>(at));
  if (piece == free_.begin()) return false;
  --piece;
  return at + bytes <= piece->first + piece->second;
}

void FreePieces::Remove(std::map<char*, size_t>::iterator piece) {
  free_by_size_.erase({piece->second, piece->first});
  free_.erase(piece);
}

}  // namespace weft::kernels::cuda
