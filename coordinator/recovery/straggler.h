#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/spec/plan.h"

namespace weft::coordinator {

/// When a rank counts as a straggler.
struct StragglerRules {
  /// Times the median of the ranks that do the same work; 0: no rank ever is one.
  double ratio = 1.2;
  /// For so long without a break.
  double seconds = 30;
};

/// How long a step takes a rank by itself.
struct RankPace {
  int64_t rank = 0;
  std::string worker_id;
  double busy_seconds = 0;  ///< Of a step, without waiting for other ranks; 0: not known.
};

/// A rank that holds up all others.
struct Straggler {
  int64_t rank = 0;
  std::string worker_id;
  double ratio = 0;           ///< Times the median of its group.
  double excess_seconds = 0;  ///< Of a step, beyond that median.

  /// "rank 2 on worker b takes 1.31 times as long for its part of a step as ranks with the same
  /// part"
  std::string Text() const;
};

/// The ranks that are at least `ratio` times as slow as the median of their group, the slowest
/// first. A group is the ranks of one pipeline stage, which do equal work; of two ranks the faster
/// one is the median. Ranks whose pace is not known count for nothing.
std::vector<Straggler> SlowRanks(const Mesh& mesh, std::span<const RankPace> paces, double ratio);

/// Watches the ranks of one attempt. Not thread-safe.
class StragglerWatch {
 public:
  /// Takes the newest paces at `now` (monotonic seconds). Returns the rank that has just become a
  /// straggler: of several the slowest, and none while one that was named is still slow.
  std::optional<Straggler> See(const Mesh& mesh, std::span<const RankPace> paces, double now,
                               const StragglerRules& rules);

  /// The rank that is one now.
  const std::optional<Straggler>& named() const { return named_; }

 private:
  std::map<int64_t, double> slow_since_;  ///< By rank.
  std::optional<Straggler> named_;
};

}  // namespace weft::coordinator
