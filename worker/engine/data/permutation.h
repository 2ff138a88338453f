#pragma once

#include <bit>
#include <cstdint>

#include "common/rng.h"

namespace weft::engine {

/// Image of `index` < `size` under a random permutation of [0, size), picked by `key`. A Feistel
/// network of four Philox rounds on the next power of four, walked until it lands inside (Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): no table, any element in O(1).
inline uint64_t Permute(uint64_t index, uint64_t size, const PhiloxKey& key) {
  if (size < 2) return index;
  const int half = (std::bit_width(size - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const Philox4 words = Philox(key, round << 60 | right);
      const uint64_t mixed = static_cast<uint64_t>(words.v[0]) << 32 | words.v[1];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= size);
  return index;
}

}  // namespace weft::engine
