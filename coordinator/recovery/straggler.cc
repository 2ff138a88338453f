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

std::optional<Straggler> SlowestRank(const Mesh& mesh, std::span<const RankPace> paces,
                                     double ratio) {
  std::optional<Straggler> slowest;
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
    const RankPace& last = group.back();
    const double times = last.busy_seconds / median;
    if (times < ratio || (slowest && times <= slowest->ratio)) continue;
    slowest = Straggler{last.rank, last.worker_id, times, last.busy_seconds - median};
  }
  return slowest;
}

std::optional<Straggler> StragglerWatch::See(const Mesh& mesh, std::span<const RankPace> paces,
                                             double now, const StragglerRules& rules) {
  std::optional<Straggler> slowest;
  if (rules.ratio > 0) slowest = SlowestRank(mesh, paces, rules.ratio);
  if (!slowest || slowest->rank != slow_rank_) {
    slow_rank_ = slowest ? slowest->rank : -1;
    slow_since_ = now;
    named_.reset();
    return std::nullopt;
  }
  if (now - slow_since_ < rules.seconds) return std::nullopt;
  const bool news = !named_;
  named_ = std::move(slowest);
  return news ? named_ : std::nullopt;
}

}  // namespace weft::coordinator
