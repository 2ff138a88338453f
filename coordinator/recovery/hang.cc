#include "coordinator/recovery/hang.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace weft::coordinator {
namespace {

/// "rank 1" and "stopped" of "rank 0 sleeping, rank 1 stopped", with their worker.
std::vector<OddRank> RanksOf(std::span<const PlacementActivity> placements) {
  std::vector<OddRank> ranks;
  for (const PlacementActivity& placement : placements) {
    const std::string& text = placement.rank_states;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(", ", begin), text.size());
      const std::string one = text.substr(begin, end - begin);
      const size_t number = one.find(' ');
      const size_t state = number == std::string::npos ? number : one.find(' ', number + 1);
      if (state != std::string::npos) {
        ranks.push_back({placement.worker_id, one.substr(0, state), one.substr(state + 1)});
      }
      begin = end + 2;
    }
  }
  return ranks;
}

/// "all-reduce" of a rank that waits in one; empty: of any other.
std::string CollectiveOf(const OddRank& rank) {
  constexpr std::string_view kIn = " in ";
  const size_t in = rank.state.find(kIn);
  return in == std::string::npos ? "" : rank.state.substr(in + kIn.size());
}

/// "no step was made", "no sign of life while saving"
std::string SilenceText(const PlacementActivity& placement) {
  switch (KindOf(placement)) {
    case ActivityKind::kStep:
      return "no step was made";
    case ActivityKind::kFirstStep:
      return "no sign of life in the first step";
    default:
      return "no sign of life while " + placement.activity;
  }
}

}  // namespace

std::optional<OddRank> FindOddRank(std::span<const PlacementActivity> placements) {
  std::vector<OddRank> ranks = RanksOf(placements);
  std::vector<OddRank> others = ranks;
  std::erase_if(others, [](const OddRank& rank) { return !CollectiveOf(rank).empty(); });
  if (others.size() == 1 && ranks.size() > 1) return others.front();
  if (!others.empty()) ranks = std::move(others);
  std::map<std::string, int> counts;
  const auto kind = [](const OddRank& rank) {
    const std::string collective = CollectiveOf(rank);
    return collective.empty() ? rank.state : collective;
  };
  for (const OddRank& rank : ranks) ++counts[kind(rank)];
  const auto is_odd = [&](const OddRank& rank) {
    if (counts.size() != 2 || counts[kind(rank)] != 1) return false;
    // One of two that sleeps waits for the one that does not.
    return CollectiveOf(rank).empty() ? rank.state != "sleeping" : ranks.size() > 2;
  };
  const auto odd = std::find_if(ranks.begin(), ranks.end(), is_odd);
  if (odd == ranks.end()) return std::nullopt;
  return *odd;
}

std::optional<std::string> FindHang(std::span<const PlacementActivity> placements,
                                    const ActivityForecast& forecast, const QuietTimes& quiet,
                                    const HangRules& rules) {
  if (rules.step_seconds <= 0 || placements.empty()) return std::nullopt;
  const HangLimits limits(placements, forecast, quiet, rules);
  // The one that fell silent last, as the others may have waited for it.
  const PlacementActivity* last = nullptr;
  HangLimit limit_of_last;
  std::string states;
  for (const PlacementActivity& placement : placements) {
    const HangLimit limit = limits.Of(placement);
    const bool silent = placement.silent_seconds > limit.seconds;
    if (placement.activity.empty() || !silent) return std::nullopt;
    if (last == nullptr || placement.silent_seconds < last->silent_seconds) {
      last = &placement;
      limit_of_last = limit;
    }
    states += (states.empty() ? "" : "; ") + placement.worker_id + ": " + placement.activity +
              (placement.rank_states.empty() ? "" : ", " + placement.rank_states);
  }
  const std::optional<OddRank> odd = FindOddRank(placements);
  return "hung: " + SilenceText(*last) + " for " + HangSecondsText(last->silent_seconds) +
         ", at most " + HangSecondsText(limit_of_last.seconds) + " are expected (" +
         limit_of_last.why + "); " + states +
         (odd ? "; " + odd->rank + " on worker " + odd->worker_id +
                    " seems to be what the others wait for: it is " + odd->state
              : "");
}

}  // namespace weft::coordinator
