#include "coordinator/recovery/hang.h"

#include <algorithm>
#include <cmath>

namespace weft::coordinator {
namespace {

constexpr std::string_view kTraining = "training";

/// "75 s", "0.4 s"
std::string SecondsText(double seconds) {
  if (seconds >= 10) return std::to_string(std::llround(seconds)) + " s";
  const auto tenths = std::llround(seconds * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

double LimitSeconds(const PlacementActivity& placement, double step_seconds,
                    const HangRules& rules) {
  const double by_steps = rules.step_factor * step_seconds;
  if (placement.activity == kTraining) return std::max(rules.least_seconds, by_steps);
  return std::max(rules.other_factor * rules.least_seconds, by_steps);
}

}  // namespace

std::optional<std::string> FindHang(std::span<const PlacementActivity> placements,
                                    double predicted_step_seconds, const HangRules& rules) {
  if (rules.least_seconds <= 0 || placements.empty()) return std::nullopt;
  double step_seconds = std::max(0.0, predicted_step_seconds);
  for (const PlacementActivity& placement : placements) {
    step_seconds = std::max(step_seconds, placement.longest_step_seconds);
  }
  // The one that fell silent last, as the others may have waited for it.
  const PlacementActivity* last = &placements.front();
  std::string states;
  for (const PlacementActivity& placement : placements) {
    const double limit = LimitSeconds(placement, step_seconds, rules);
    if (placement.activity.empty() || !(placement.silent_seconds > limit)) return std::nullopt;
    if (placement.silent_seconds < last->silent_seconds) last = &placement;
    states += (states.empty() ? "" : "; ") + placement.worker_id + ": " + placement.activity +
              (placement.rank_states.empty() ? "" : ", " + placement.rank_states);
  }
  const bool training = last->activity == kTraining;
  return "hung: " +
         (training ? "no step was made for "
                   : "no sign of life while " + last->activity + " for ") +
         SecondsText(last->silent_seconds) + ", at most " +
         SecondsText(LimitSeconds(*last, step_seconds, rules)) + " are expected (" +
         (training ? "steps" : "a step") + " took up to " + SecondsText(step_seconds) + "); " +
         states;
}

}  // namespace weft::coordinator
