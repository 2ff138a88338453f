#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/clock.h"

namespace weft::trainer {

/// Speed over the last steps.
class Speedometer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Speedometer(Time now) : marks_{{now, 0}} {}

  /// `count` steps, over `tokens` tokens together, ended. Returns the seconds of one, from the end
  /// of the previous ones.
  double Steps(Time now, int64_t count, int64_t tokens) {
    const double seconds = ToSeconds(now - marks_.back().time) / static_cast<double>(count);
    // The first one allocates, and touches what it trains on for the first time.
    if (warm_) steps_.push_back(seconds);
    if (steps_.size() > kMostSteps) steps_.pop_front();
    warm_ = true;
    marks_.push_back({now, marks_.back().tokens + tokens});
    if (marks_.size() > kWindow + 1) marks_.pop_front();
    return seconds;
  }

  double tokens_per_second() const {
    const double seconds = ToSeconds(marks_.back().time - marks_.front().time);
    const auto tokens = static_cast<double>(marks_.back().tokens - marks_.front().tokens);
    return seconds > 0 ? tokens / seconds : 0;
  }

  /// The median over all steps except the first; 0 before.
  double MedianSeconds() const {
    if (steps_.empty()) return 0;
    std::vector<double> sorted(steps_.begin(), steps_.end());
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
  int64_t timed_steps() const { return static_cast<int64_t>(steps_.size()); }

 private:
  static constexpr size_t kWindow = 20;
  static constexpr size_t kMostSteps = 1000;
  struct Mark {
    Time time;
    int64_t tokens;
  };
  std::deque<Mark> marks_;
  std::deque<double> steps_;
  bool warm_ = false;
};

}  // namespace weft::trainer
