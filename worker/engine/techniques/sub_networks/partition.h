#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::engine {

/// Which units of a sub-layer a rank trains in a round.
struct OwnUnits {
  std::vector<uint8_t> own;  ///< By unit, 1: this rank's, 0: that of another one.
  int64_t count = 0;         ///< Of its own.

  /// What its own units are multiplied by where they are added up, so that their sum is that of all
  /// units on average over the draws.
  float Scale() const { return static_cast<float>(own.size()) / static_cast<float>(count); }
};

/// The units of `rank` in round `round`: of a partition of `units` units into those of `ranks`
/// ranks, whose sizes differ by one at most. It is drawn for each round and each `site`, the weight
/// that ends the sub-layer, and depends on the arguments alone: ranks agree on it without asking.
/// `units` is at least `ranks`.
OwnUnits UnitsOfRank(uint64_t seed, int64_t round, const std::string& site, int64_t units,
                     int64_t rank, int64_t ranks);

}  // namespace weft::engine
