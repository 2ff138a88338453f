#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace weft::coordinator {

/// Leases of the workers, by the coordinator's monotonic clock. A worker stops its ranks when its
/// own clock says that its lease has run out, so they are surely gone once the lease and a margin
/// for the difference between the clocks have passed here. Not thread-safe.
class LeaseTable {
 public:
  using Duration = std::chrono::nanoseconds;

  enum class Phase {
    kExpired,  ///< The lease ran out: the worker is lost, its ranks may be alive for the margin.
    kGone,     ///< The margin has passed too: none of its ranks is alive.
  };
  struct Change {
    std::string worker_id;
    Phase phase;
  };

  LeaseTable(const Clock& clock, Duration lease, Duration margin)
      : clock_(clock), lease_(lease), margin_(margin) {}

  /// Grants or renews: the lease runs anew from now.
  void Renew(const std::string& worker_id);

  /// Treats the worker as if it had never had a lease.
  void Forget(const std::string& worker_id);

  /// Leases that ran out since the last call, each phase once, in order of time.
  std::vector<Change> TakeChanges();

  /// When TakeChanges next has something, if nobody renews; nullopt: never.
  std::optional<Duration> NextDeadline() const;

  /// The lease is running.
  bool IsValid(const std::string& worker_id) const;

 private:
  struct Entry {
    Duration renewed_at{0};
    bool expired = false;         ///< kExpired has been reported.
    std::optional<Duration> due;  ///< When there is something to report; none after kGone.
  };

  const Clock& clock_;
  Duration lease_;
  Duration margin_;
  std::map<std::string, Entry> entries_;
  std::set<std::pair<Duration, std::string>> due_;  ///< Entry::due of all, the next one first.
};

}  // namespace weft::coordinator
