#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

/// Bytes of a tensor that each rank of a group on CPUs reduces at a time: enough that the hand-over
/// between threads does not count, few enough that twice those of all peers are not much memory.
inline int64_t ReducedPieceBytes(int64_t ranks) {
  constexpr int64_t kMost = 2 << 20;
  constexpr int64_t kLeast = 128 << 10;
  constexpr int64_t kOfAllPeers = 8 << 20;
  return std::clamp(kOfAllPeers / ranks, kLeast, kMost);
}

/// Bytes that a rank of such a group holds for its reductions: two pieces of each peer.
inline int64_t ReductionStagingBytes(int64_t ranks) {
  return 2 * (ranks - 1) * ReducedPieceBytes(ranks);
}

}  // namespace weft
