#include "coordinator/recovery/straggler.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::coordinator {

std::string Straggler::Text() const {
  char factor[32];
  std::snprintf(factor, sizeof(factor), "%.2f", ratio);
  return "rank " + std::to_string(rank) + " on worker " + worker_id + " takes " + factor +
         " times as long for its part of a step as ranks with equal work";
}

std::vector<Straggler> SlowRanks(const Mesh& mesh, std::span<const RankPace> paces, double ratio) {
  std::vector<Straggler> slow;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    std::vector<RankPace> group;
    for (const RankPace& pace : paces) {
      // Ranks of a stage follow one another.
      const bool in_stage = pace.rank * mesh.pipeline / RankCount(mesh) == stage;
      if (in_stage && pace.busy_seconds > 0) group.push_back(pace);
    }
    if (group.size() < 2) continue;
    std::sort(group.begin(), group.end(),
              [](const auto& a, const auto& b) { return a.busy_seconds < b.busy_seconds; });
    const double median = group[(group.size() - 1) / 2].busy_seconds;
    for (const RankPace& pace : group) {
      const double times = pace.busy_seconds / median;
      if (times < ratio) continue;
      slow.push_back({pace.rank, pace.worker_id, times, pace.busy_seconds - median});
    }
  }
  std::sort(slow.begin(), slow.end(),
            [](const Straggler& a, const Straggler& b) { return a.ratio > b.ratio; });
  return slow;
}

std::optional<Straggler> StragglerWatch::See(const Mesh& mesh, std::span<const RankPace> paces,
                                             double now, const StragglerRules& rules) {
  std::vector<Straggler> slow;
  if (rules.ratio > 0) slow = SlowRanks(mesh, paces, rules.ratio);
  std::map<int64_t, double> since;
  for (const Straggler& rank : slow) {
    const auto before = slow_since_.find(rank.rank);
    since[rank.rank] = before == slow_since_.end() ? now : before->second;
  }
  slow_since_ = std::move(since);
  std::erase_if(
      slow, [&](const Straggler& rank) { return now - slow_since_.at(rank.rank) < rules.seconds; });
  // Ranks of a slow machine are by turns the slowest.
  const auto same = std::find_if(slow.begin(), slow.end(), [&](const Straggler& rank) {
    return named_ && rank.rank == named_->rank;
  });
  if (same != slow.end()) {
    named_ = *same;
    return std::nullopt;
  }
  named_.reset();
  if (!slow.empty()) named_ = slow.front();
  return named_;
}

}  // namespace weft::coordinator
