#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/spec/cluster_spec.h"
#include "coordinator/service/views.h"
#include "coordinator/service/worker_link.h"

namespace weft::coordinator {

/// Which line of the log of an attempt comes next.
struct LogPlace {
  int64_t epoch = 0;
  std::string source;  ///< As LogAppend::worker_id.
  int64_t position = 0;

  bool operator==(const LogPlace&) const = default;
};

/// A worker that has attached, and what is known of it as long as the coordinator runs. Times are
/// of the monotonic clock.
struct Session {
  using Duration = std::chrono::nanoseconds;

  std::shared_ptr<WorkerLink> link;  ///< Null: no stream.
  std::string incarnation;
  std::string version;
  std::string machine;       ///< Empty: not known.
  double given_network = 0;  ///< Bytes per second, as the worker was started.
  WorkerProfile profile;     ///< With the network rate that plans use.
  bool lost = false;
  bool stale_ranks = false;  ///< Runs ranks of attempts that are over; takes no others.
  bool draining = false;     ///< Ends soon; takes no others.
  Duration registered_at{0};
  Duration steady_from{0};  ///< Neither lost nor started anew since.
  Duration heard_at{0};
  double last_heartbeat_at = 0;  ///< Seconds since 1970.
  bool logs_failed = false;      ///< Lines of this stream could not be stored.
  /// Where the lines of its attempts go on, by job, of those that came through this stream.
  std::map<std::string, LogPlace> log_places;
  bool unchecked = false;              ///< Its machine is to be checked before it gets ranks.
  Duration check_from{0};              ///< Not before.
  int64_t health_call = 0;             ///< The check under way; 0: none.
  std::optional<WorkerState> counted;  ///< As which it is in the metrics.

  WorkerState State() const {
    return lost ? WorkerState::kLost : link ? WorkerState::kReady : WorkerState::kDisconnected;
  }
};

}  // namespace weft::coordinator
