#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "common/clock.h"

namespace weft::coordinator {

/// A token bucket for each caller: `per_second` calls over time, and `burst` of them at once.
/// Thread-safe.
class RateLimit {
 public:
  RateLimit(const Clock& clock, double per_second, double burst)
      : clock_(clock), per_second_(per_second), burst_(burst) {}

  /// Takes one call of `caller`; false when there is none left.
  bool Take(const std::string& caller) {
    const std::lock_guard lock(mutex_);
    const std::chrono::nanoseconds now = clock_.Monotonic();
    // A full bucket is like none.
    if (buckets_.size() >= kMostBuckets) {
      std::erase_if(buckets_,
                    [&](const auto& entry) { return Level(entry.second, now) >= burst_; });
    }
    Bucket& bucket = buckets_.try_emplace(caller, Bucket{burst_, now}).first->second;
    bucket = {Level(bucket, now), now};
    if (bucket.level < 1) return false;
    bucket.level -= 1;
    return true;
  }

 private:
  static constexpr size_t kMostBuckets = 10'000;

  struct Bucket {
    double level;
    std::chrono::nanoseconds at;
  };

  double Level(const Bucket& bucket, std::chrono::nanoseconds now) const {
    const double seconds = ToSeconds(now - bucket.at);
    return std::min(burst_, bucket.level + seconds * per_second_);
  }

  const Clock& clock_;
  const double per_second_, burst_;
  std::mutex mutex_;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace weft::coordinator
