#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace weft::trainer {

/// Speed over the last steps.
class Speedometer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Speedometer(Time now) : marks_{{now, 0}} {}

  /// A step over `tokens` tokens ended. Returns the seconds since the previous one.
  double Step(Time now, int64_t tokens) {
    const double seconds = Seconds(marks_.back().time, now);
    marks_.push_back({now, marks_.back().tokens + tokens});
    if (marks_.size() > kWindow + 1) marks_.pop_front();
    return seconds;
  }

  double tokens_per_second() const {
    const double seconds = Seconds(marks_.front().time, marks_.back().time);
    const auto tokens = static_cast<double>(marks_.back().tokens - marks_.front().tokens);
    return seconds > 0 ? tokens / seconds : 0;
  }

 private:
  static constexpr size_t kWindow = 20;
  struct Mark {
    Time time;
    int64_t tokens;
  };
  static double Seconds(Time from, Time to) {
    return std::chrono::duration<double>(to - from).count();
  }
  std::deque<Mark> marks_;
};

}  // namespace weft::trainer
