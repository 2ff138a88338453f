#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace weft::coordinator {

/// Measures the mean time of the steps of one attempt, with what stands between them (evaluation,
/// checkpoints), from the times at which its worker reports them.
class StepTimer {
 public:
  using Duration = std::chrono::nanoseconds;

  /// `step` was the last one done when it was reported at `now`. One below an earlier one begins
  /// anew: the training went back.
  void See(int64_t step, Duration now) {
    if (last_ && step == last_->step) return;
    if (!first_ || step < last_->step) first_ = {step, now};
    last_ = {step, now};
  }

  /// 0 before kLeast steps.
  double StepSeconds() const {
    if (!first_ || last_->step - first_->step < kLeast) return 0;
    return std::chrono::duration<double>(last_->at - first_->at).count() /
           static_cast<double>(last_->step - first_->step);
  }

 private:
  static constexpr int64_t kLeast = 3;
  struct Mark {
    int64_t step;
    Duration at;
  };
  std::optional<Mark> first_;
  std::optional<Mark> last_;
};

}  // namespace weft::coordinator
