#include "coordinator/recovery/hang.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <system_error>
#include <vector>

namespace weft::coordinator {
namespace {

constexpr std::string_view kTraining = "training";
constexpr std::string_view kWaitingForDisk = "waiting for a disk";

/// "75 s", "0.4 s"
std::string SecondsText(double seconds) {
  if (seconds >= 10) return std::to_string(std::llround(seconds)) + " s";
  const auto tenths = std::llround(seconds * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

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

/// The steps and ranks of all placements, on which the limits of each depend: they wait for each
/// other.
struct Together {
  double step_seconds = 0;
  bool waits_for_disk = false;
};

Together TogetherOf(std::span<const PlacementActivity> placements, double predicted_step_seconds) {
  Together all{.step_seconds = std::max(0.0, predicted_step_seconds)};
  for (const PlacementActivity& placement : placements) {
    all.step_seconds = std::max(all.step_seconds, placement.longest_step_seconds);
  }
  const std::vector<OddRank> ranks = RanksOf(placements);
  all.waits_for_disk = std::any_of(ranks.begin(), ranks.end(), [](const OddRank& rank) {
    return rank.state == kWaitingForDisk;
  });
  return all;
}

double LimitSeconds(const PlacementActivity& placement, const Together& all,
                    const HangRules& rules) {
  const bool in_steps = placement.activity == kTraining && placement.longest_step_seconds > 0;
  const double least = in_steps && !all.waits_for_disk ? rules.step_seconds : rules.other_seconds;
  return std::max(least, rules.step_factor * all.step_seconds);
}

}  // namespace

Result<HangRules> HangRulesOf(const std::string& text) {
  constexpr double kMostSeconds = 1e6;
  constexpr double kOtherFactor = 5;
  if (text == "auto") return HangRules();
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // Not a number fails both comparisons.
  const bool in_range = seconds >= 0 && seconds <= kMostSeconds;
  if (error != std::errc() || end != text.data() + text.size() || !in_range) {
    return InvalidError("'" + text + "' is neither auto nor seconds from 0 to 1000000");
  }
  return HangRules{.step_seconds = seconds, .other_seconds = kOtherFactor * seconds};
}

std::optional<OddRank> FindOddRank(std::span<const PlacementActivity> placements) {
  const std::vector<OddRank> ranks = RanksOf(placements);
  if (ranks.size() < 2) return std::nullopt;
  std::map<std::string, int> counts;
  for (const OddRank& rank : ranks) ++counts[rank.state];
  const auto is_odd = [&](const OddRank& rank) {
    // One of two that sleeps waits for the one that does not.
    return counts[rank.state] == 1 && counts.size() == 2 && rank.state != "sleeping";
  };
  const auto odd = std::find_if(ranks.begin(), ranks.end(), is_odd);
  if (odd == ranks.end()) return std::nullopt;
  return *odd;
}

std::optional<std::string> FindHang(std::span<const PlacementActivity> placements,
                                    double predicted_step_seconds, const HangRules& rules) {
  if (rules.step_seconds <= 0 || placements.empty()) return std::nullopt;
  const Together all = TogetherOf(placements, predicted_step_seconds);
  // The one that fell silent last, as the others may have waited for it.
  const PlacementActivity* last = &placements.front();
  std::string states;
  for (const PlacementActivity& placement : placements) {
    const double limit = LimitSeconds(placement, all, rules);
    if (placement.activity.empty() || !(placement.silent_seconds > limit)) return std::nullopt;
    if (placement.silent_seconds < last->silent_seconds) last = &placement;
    states += (states.empty() ? "" : "; ") + placement.worker_id + ": " + placement.activity +
              (placement.rank_states.empty() ? "" : ", " + placement.rank_states);
  }
  const bool training = last->activity == kTraining;
  const std::optional<OddRank> odd = FindOddRank(placements);
  return "hung: " +
         (training ? "no step was made for "
                   : "no sign of life while " + last->activity + " for ") +
         SecondsText(last->silent_seconds) + ", at most " +
         SecondsText(LimitSeconds(*last, all, rules)) + " are expected (" +
         (training ? "steps" : "a step") + " took up to " + SecondsText(all.step_seconds) + "); " +
         states +
         (odd ? "; " + odd->rank + " on worker " + odd->worker_id +
                    " seems to be what the others wait for: it is " + odd->state
              : "");
}

}  // namespace weft::coordinator
