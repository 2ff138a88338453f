#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace weft::daemon {

/// What an attempt's wall time went to.
enum class TimeClass : uint8_t {
  kStartup,   ///< Until the first step, when no earlier attempt made one.
  kRecovery,  ///< Until the first step, after earlier attempts.
  kUseful,    ///< Steps that no earlier attempt had done.
  kRework,    ///< Steps done before and lost.
  kStall,     ///< The rest: checkpoints, evaluation, waiting for data, stopping.
};
inline constexpr int kTimeClasses = 5;

/// "startup", "recovery", "useful", "rework" or "stall".
std::string_view TimeClassName(TimeClass time_class);

/// Divides the wall time of one attempt among the classes. Time is handed out once, in order, so
/// that the classes sum to the time from construction to the last call, exactly. Not thread-safe.
class TimeLedger {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  /// `done_before`: steps that earlier attempts reached (0: none), to tell rework from progress.
  TimeLedger(Nanoseconds start, int64_t done_before) : last_(start), done_before_(done_before) {}

  /// Step `step` (counting from 1) was reported at `now`; it took `step_time` without what stalled
  /// it.
  void OnStep(Nanoseconds now, int64_t step, Nanoseconds step_time);

  /// The attempt is over.
  void Finish(Nanoseconds now);

  Nanoseconds total(TimeClass time_class) const { return totals_[static_cast<int>(time_class)]; }

 private:
  TimeClass IdleClass() const;
  void Give(TimeClass time_class, Nanoseconds amount);

  Nanoseconds last_;
  int64_t done_before_;
  int64_t last_step_ = -1;  // -1: no step yet
  std::array<Nanoseconds, kTimeClasses> totals_{};
};

}  // namespace weft::daemon
