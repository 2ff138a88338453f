#include "coordinator/scheduler/link_levels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

namespace weft::coordinator {
namespace {

constexpr double kLevelsPerDoubling = 4;

/// Union-find, with path halving.
size_t RootOf(std::vector<size_t>& parents, size_t worker) {
  while (parents[worker] != worker) {
    parents[worker] = parents[parents[worker]];
    worker = parents[worker];
  }
  return worker;
}

}  // namespace

int64_t LinkLevel(double bytes_per_second) {
  return std::llround(kLevelsPerDoubling * std::log2(std::max(bytes_per_second, 1.0)));
}

LinkLevels::LinkLevels(const std::unordered_map<std::string, size_t>& index_of,
                       const std::vector<MeasuredLink>& links)
    : measured_(index_of.size()) {
  std::map<int64_t, std::vector<std::pair<size_t, size_t>>, std::greater<>> by_level;
  for (const MeasuredLink& link : links) {
    const auto one = index_of.find(link.one);
    const auto other = index_of.find(link.other);
    if (one == index_of.end() || other == index_of.end()) continue;
    by_level[link.level].emplace_back(one->second, other->second);
    measured_[one->second].emplace_back(other->second, link.level);
    measured_[other->second].emplace_back(one->second, link.level);
  }
  std::vector<size_t> parents(index_of.size());
  std::iota(parents.begin(), parents.end(), size_t{0});
  for (const auto& [level, pairs] : by_level) {
    for (const auto& [one, other] : pairs) {
      const size_t first = RootOf(parents, one), second = RootOf(parents, other);
      parents[std::max(first, second)] = std::min(first, second);
    }
    Tier& tier = tiers_.emplace_back();
    tier.level = level;
    for (size_t worker = 0; worker < parents.size(); ++worker) {
      tier.group_of.push_back(RootOf(parents, worker));
    }
  }
}

bool LinkLevels::HasSlowerTo(const std::unordered_set<size_t>& others, size_t worker,
                             int64_t level) const {
  return std::any_of(measured_[worker].begin(), measured_[worker].end(), [&](const auto& link) {
    return link.second < level && others.contains(link.first);
  });
}

bool LinkLevels::Reaches(const Tier& tier, const std::vector<size_t>& workers) const {
  const std::unordered_set<size_t> all(workers.begin(), workers.end());
  return std::all_of(workers.begin(), workers.end(), [&](size_t worker) {
    return tier.group_of[worker] == tier.group_of[workers.front()] &&
           !HasSlowerTo(all, worker, tier.level);
  });
}

}  // namespace weft::coordinator
