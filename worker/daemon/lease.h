#pragma once

#include <algorithm>
#include <chrono>

#include "common/clock.h"

namespace weft::daemon {

/// The right of this worker to let ranks work, as seen by its own monotonic clock. The coordinator
/// gives the work to others once the lease has run out on its side; this side gives up a margin
/// earlier, counted from the moment it *sent* the message that was acknowledged, so that the ranks
/// are gone before any other starts ("lease before effect"). Not thread-safe.
class Lease {
 public:
  explicit Lease(const Clock& clock) : clock_(clock) {}

  /// Length that the coordinator granted, from Registered.
  void SetLength(std::chrono::nanoseconds length) { length_ = length; }

  /// How long a worker waits between two dials at the most: several fit into a lease.
  std::chrono::nanoseconds LongestBreak() const {
    return length_.count() == 0 ? std::chrono::hours(1) : length_ / 8;
  }

  /// The coordinator acknowledged a message that was sent at `sent_at`.
  void Renew(std::chrono::nanoseconds sent_at) {
    if (!held_ || sent_at > renewed_) renewed_ = sent_at;
    held_ = true;
  }

  /// Monotonic time at which every rank must be killed.
  std::chrono::nanoseconds Deadline() const { return renewed_ + length_ - Margin(); }

  /// No lease was ever granted, or its deadline has passed.
  bool Expired() const { return !held_ || clock_.Monotonic() >= Deadline(); }

  /// What is given up for clock drift and for killing: an eighth, between 0.1 and 2 seconds.
  std::chrono::nanoseconds Margin() const {
    return std::clamp<std::chrono::nanoseconds>(length_ / 8, std::chrono::milliseconds(100),
                                                std::chrono::seconds(2));
  }

 private:
  const Clock& clock_;
  std::chrono::nanoseconds length_{0};
  std::chrono::nanoseconds renewed_{0};
  bool held_ = false;
};

}  // namespace weft::daemon
