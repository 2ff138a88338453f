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

double LimitSeconds(const ShareActivity& share, double step_seconds, const HangRules& rules) {
  const double by_steps = rules.step_factor * step_seconds;
  if (share.activity == kTraining) return std::max(rules.least_seconds, by_steps);
  return std::max(rules.other_factor * rules.least_seconds, by_steps);
}

}  // namespace

std::optional<std::string> FindHang(std::span<const ShareActivity> shares,
                                    double predicted_step_seconds, const HangRules& rules) {
  if (rules.least_seconds <= 0 || shares.empty()) return std::nullopt;
  double step_seconds = std::max(0.0, predicted_step_seconds);
  for (const ShareActivity& share : shares) {
    step_seconds = std::max(step_seconds, share.longest_step_seconds);
  }
  // The one that fell silent last, as the others may have waited for it.
  const ShareActivity* last = &shares.front();
  std::string states;
  for (const ShareActivity& share : shares) {
    const double limit = LimitSeconds(share, step_seconds, rules);
    if (share.activity.empty() || !(share.silent_seconds > limit)) return std::nullopt;
    if (share.silent_seconds < last->silent_seconds) last = &share;
    states += (states.empty() ? "" : "; ") + share.worker_id + ": " + share.activity +
              (share.rank_states.empty() ? "" : ", " + share.rank_states);
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
