#include "coordinator/recovery/hang_limits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

namespace weft::coordinator {
namespace {

constexpr std::string_view kWaitingForDisk = "waiting for a disk";

/// A save writes its bytes and reads them back.
constexpr double kPassesOfSave = 2;

}  // namespace

Result<HangRules> HangRulesOf(const std::string& text) {
  constexpr double kMostSeconds = 1e6, kOtherFactor = 5, kOtherLeastSeconds = 3;
  if (text == "auto") return HangRules();
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // Not a number fails both comparisons.
  const bool in_range = seconds >= 0 && seconds <= kMostSeconds;
  if (error != std::errc() || end != text.data() + text.size() || !in_range) {
    return InvalidError("'" + text + "' is neither auto nor seconds from 0 to 1000000");
  }
  return HangRules{.step_seconds = seconds,
                   .other_least_seconds = std::max(seconds, kOtherLeastSeconds),
                   .other_seconds = kOtherFactor * seconds};
}

ActivityKind KindOf(const PlacementActivity& placement) {
  const std::string& activity = placement.activity;
  if (activity == "training") {
    return placement.longest_step_seconds > 0 ? ActivityKind::kStep : ActivityKind::kFirstStep;
  }
  if (activity == "starting" || activity == "loading") return ActivityKind::kStart;
  if (activity == "evaluating") return ActivityKind::kEvaluation;
  if (activity == "saving") return ActivityKind::kSave;
  return ActivityKind::kOther;
}

ActivityForecast ForecastOf(const Plan& plan, int64_t global_batch,
                            std::span<const MachineRates> machines) {
  ActivityForecast forecast;
  const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
  forecast.on_gpus = plan.device == "cuda";
  forecast.step_seconds = plan.prediction.step_seconds;
  forecast.sequences_per_step = static_cast<double>(global_batch);
  double slowest_disk = machines.empty() ? 0 : machines.front().disk_write_bytes_per_second;
  for (const MachineRates& machine : machines) {
    slowest_disk = std::min(slowest_disk, machine.disk_write_bytes_per_second);
    if (machine.copy_bytes_per_second <= 0) continue;
    const double bytes =
        static_cast<double>(machine.ranks) * static_cast<double>(TotalBytes(memory));
    forecast.memory_seconds =
        std::max(forecast.memory_seconds, bytes / machine.copy_bytes_per_second);
  }
  forecast.disk_bytes_per_second = slowest_disk;
  if (slowest_disk > 0) {
    const double state = static_cast<double>(memory.parameters_bytes + memory.optimizer_bytes);
    forecast.load_seconds = state * static_cast<double>(RankCount(plan.mesh)) / slowest_disk;
  }
  return forecast;
}

void QuietTimes::See(std::span<const PlacementActivity> placements) {
  // The attempt is as silent as the placement that was heard of last.
  const PlacementActivity* last = nullptr;
  double step = 0;
  for (const PlacementActivity& placement : placements) {
    if (placement.activity.empty()) return;
    step = std::max(step, placement.longest_step_seconds);
    if (last == nullptr || placement.silent_seconds < last->silent_seconds) last = &placement;
  }
  if (last == nullptr) return;
  if (last->silent_seconds < silent_seconds_) {
    double& longest = longest_[static_cast<size_t>(kind_)];
    longest = std::max(longest, silent_seconds_);
  }
  kind_ = KindOf(*last);
  silent_seconds_ = last->silent_seconds;
  step_seconds_ = step;
}

void QuietTimes::NextAttempt() {
  if (step_seconds_ > 0) step_seconds_before_ = step_seconds_;
  silent_seconds_ = step_seconds_ = 0;
  kind_ = ActivityKind::kOther;
}

HangLimits::HangLimits(std::span<const PlacementActivity> placements,
                       const ActivityForecast& forecast, const QuietTimes& quiet,
                       const HangRules& rules)
    : forecast_(forecast),
      quiet_(quiet),
      rules_(rules),
      own_step_seconds_(std::max(0.0, forecast.step_seconds)) {
  for (const PlacementActivity& placement : placements) {
    own_step_seconds_ = std::max(own_step_seconds_, placement.longest_step_seconds);
    saved_bytes_ += static_cast<double>(placement.saved_bytes);
    waits_for_disk_ |= placement.rank_states.find(kWaitingForDisk) != std::string::npos;
  }
  step_seconds_ = std::max(own_step_seconds_, quiet.step_seconds_before());
}

std::optional<double> HangLimits::ExpectedSeconds(const PlacementActivity& placement) const {
  switch (KindOf(placement)) {
    case ActivityKind::kStep:
    case ActivityKind::kOther:
      break;
    case ActivityKind::kFirstStep:
      if (step_seconds_ <= 0 || forecast_.on_gpus) break;
      return step_seconds_ + forecast_.memory_seconds;
    case ActivityKind::kStart:
      if (forecast_.load_seconds <= 0 || forecast_.on_gpus) break;
      return forecast_.load_seconds + forecast_.memory_seconds + step_seconds_;
    case ActivityKind::kEvaluation: {
      if (step_seconds_ <= 0 || forecast_.sequences_per_step <= 0 || placement.sequences <= 0) {
        break;
      }
      const double steps = static_cast<double>(placement.sequences) / forecast_.sequences_per_step;
      return step_seconds_ * std::max(1.0, steps);
    }
    case ActivityKind::kSave:
      if (forecast_.disk_bytes_per_second <= 0 || saved_bytes_ <= 0) break;
      return kPassesOfSave * saved_bytes_ / forecast_.disk_bytes_per_second;
  }
  return std::nullopt;
}

HangLimit HangLimits::Of(const PlacementActivity& placement) const {
  const ActivityKind kind = KindOf(placement);
  if (kind == ActivityKind::kStep && !waits_for_disk_) {
    return {std::max(rules_.step_seconds, rules_.step_factor * own_step_seconds_),
            "steps took up to " + HangSecondsText(own_step_seconds_)};
  }
  const double most = std::max(rules_.other_seconds, rules_.step_factor * step_seconds_);
  const std::optional<double> expected = ExpectedSeconds(placement);
  if (!expected || waits_for_disk_) {
    return {most, std::string(waits_for_disk_ ? "a rank waits for a disk, " : "") +
                      "a step took up to " + HangSecondsText(step_seconds_)};
  }
  const double seen = quiet_.LongestSeconds(kind);
  const double least = std::min(rules_.other_least_seconds, most);
  std::string why = "it should take " + HangSecondsText(*expected);
  if (seen > 0) why += ", and was silent for up to " + HangSecondsText(seen) + " before";
  return {std::clamp(rules_.step_factor * std::max(*expected, seen), least, most), why};
}

std::string HangSecondsText(double seconds) {
  if (seconds >= 10) return std::to_string(std::llround(seconds)) + " s";
  const auto tenths = std::llround(seconds * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace weft::coordinator
