#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/rng.h"

namespace weft::daemon {

/// Waiting times between dials: doubling from 0.2 to 5 seconds, each spread evenly over its upper
/// half so that many workers do not come back in one moment. Not thread-safe.
class Backoff {
 public:
  static constexpr double kFirstSeconds = 0.2;
  static constexpr double kLastSeconds = 5;

  explicit Backoff(uint64_t seed) : random_(PhiloxKey{seed, 0, SiteHash("backoff")}) {}

  /// At most `longest`: of a worker with a lease a part of it, so that a coordinator that comes
  /// back before its end is found before its end.
  std::chrono::duration<double> Next(std::chrono::duration<double> longest) {
    const double whole = std::min(seconds_, longest.count());
    seconds_ = std::min(kLastSeconds, seconds_ * 2);
    return std::chrono::duration<double>(whole * (0.5 + 0.5 * random_.Uniform()));
  }

  /// A dial succeeded.
  void Reset() { seconds_ = kFirstSeconds; }

 private:
  PhiloxStream random_;
  double seconds_ = kFirstSeconds;
};

}  // namespace weft::daemon
