#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace weft::coordinator {

/// The measured network between two workers on different machines.
struct MeasuredLink {
  std::string one;
  std::string other;
  int64_t level = 0;  ///< LinkLevel of its rate.
};

/// Rates in bytes per second by steps of a fifth: one level more is 2^(1/4) times the rate. So
/// neither places nor their record follow the noise of measurements.
int64_t LinkLevel(double bytes_per_second);

/// How fast any two workers reach each other by the links that were measured. Networks are trees of
/// switches, and each machine is measured to a few others only. So two workers whose link was not
/// measured have the least level of the best path over measured links (single-linkage clustering).
class LinkLevels {
 public:
  /// Workers that reach each other at `level` or faster.
  struct Tier {
    int64_t level = 0;
    std::vector<size_t> group_of;  ///< By worker, the number of one of its group.
  };

  /// `index_of`: the number of each worker. Links of others do not count.
  LinkLevels(const std::unordered_map<std::string, size_t>& index_of,
             const std::vector<MeasuredLink>& links);

  /// One for each level that was measured, the fastest first.
  const std::vector<Tier>& tiers() const { return tiers_; }

  /// Whether the link of the worker to one of the others was measured to be slower than `level`.
  bool HasSlowerTo(const std::unordered_set<size_t>& others, size_t worker, int64_t level) const;

  /// Whether all of the workers reach each other at the tier's level.
  bool Reaches(const Tier& tier, const std::vector<size_t>& workers) const;

 private:
  std::vector<Tier> tiers_;
  /// The other workers to which each was measured, and the level.
  std::vector<std::vector<std::pair<size_t, int64_t>>> measured_;
};

}  // namespace weft::coordinator
