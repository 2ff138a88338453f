#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/clock.h"

namespace weft::coordinator {

/// The time of the steps of one attempt as its worker reports them: the mean with what is
/// between them (evaluation, checkpoints), and the median of single ones without.
class StepTimer {
 public:
  using Duration = std::chrono::nanoseconds;

  /// `step` was the last one done, in `seconds`, when it was reported at `now`. One below an
  /// earlier one begins anew: the training went back.
  void See(int64_t step, double seconds, Duration now) {
    if (last_ && step == last_->step) return;
    if (!first_ || step < last_->step) first_ = {step, now};
    last_ = {step, now};
    single_.push_back(seconds);
    if (single_.size() > kMostSingle) single_.erase(single_.begin());
  }

  /// 0 before kLeast steps.
  double StepSeconds() const {
    if (!first_ || last_->step - first_->step < kLeast) return 0;
    return ToSeconds(last_->at - first_->at) / static_cast<double>(last_->step - first_->step);
  }

  /// 0 before kLeastSingle reports.
  double MedianSeconds() const {
    if (single_.size() < kLeastSingle) return 0;
    std::vector<double> sorted(single_.begin(), single_.end());
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }

  /// The number of reports that this is the median of.
  int64_t reports() const { return static_cast<int64_t>(single_.size()); }

  static constexpr int64_t kLeast = 3;
  static constexpr size_t kLeastSingle = 20;
  static constexpr size_t kMostSingle = 200;

 private:
  struct Mark {
    int64_t step;
    Duration at;
  };
  std::optional<Mark> first_;
  std::optional<Mark> last_;
  std::vector<double> single_;  ///< Oldest first.
};

}  // namespace weft::coordinator
