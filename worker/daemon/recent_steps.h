#pragma once

#include <cstdint>
#include <deque>

namespace weft::daemon {

/// The longest of the latest steps of a rank: how long its next one may take. Not thread-safe.
class RecentSteps {
 public:
  /// Long enough for what a job does now and then, as each few hundred steps.
  static constexpr int64_t kWindow = 1000;

  /// A step has ended. The first one, which allocates and compiles, counts until there is another.
  void Add(double seconds) {
    if (count_ == 1) longest_.clear();
    while (!longest_.empty() && longest_.back().seconds <= seconds) longest_.pop_back();
    longest_.push_back({count_++, seconds});
    if (longest_.front().number + kWindow < count_) longest_.pop_front();
  }

  /// 0: no step has ended.
  double LongestSeconds() const { return longest_.empty() ? 0 : longest_.front().seconds; }

 private:
  struct Step {
    int64_t number = 0;
    double seconds = 0;
  };
  std::deque<Step> longest_;  ///< Each longer than all after it.
  int64_t count_ = 0;
};

}  // namespace weft::daemon
