#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "coordinator/recovery/hang.h"
#include "coordinator/recovery/state_machine.h"
#include "coordinator/recovery/straggler.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

struct AttemptKey {
  std::string job_id;
  int64_t epoch = 0;
};

/// An attempt whose ranks run on a worker, as the worker says.
struct RunningAttempt {
  std::string job_id;
  int64_t epoch = 0;
  Progress progress;
  PlacementActivity activity = {};  ///< Without worker_id.
  double checkpoint_seconds = 0;    ///< Training waited for checkpoints.
  double evaluation_seconds = 0;
  double data_wait_seconds = 0;                      ///< Of the rank that waited longest for data.
  std::vector<RankPace> paces = {};                  ///< Without worker_id.
  int64_t membership = 0;                            ///< Newest that its ranks know.
  std::optional<int64_t> first_rank = std::nullopt;  ///< Lowest of its ranks, as far as known.
};

/// The ranks of a running attempt whose ranks come and go, from its next outer step on.
struct MembershipOrder {
  std::string job_id;
  int64_t epoch = 0;
  int64_t number = 0;
  std::vector<int64_t> ranks;
  std::vector<int64_t> gone;  ///< Ranks that are no more.
};

/// How a worker introduces itself on a new stream.
struct WorkerHello {
  std::string worker_id;
  std::string incarnation;
  std::string version;
  int api_level = 0;
  std::string machine;  ///< Shared by all workers on it; empty: not known.
  WorkerProfile profile;
  std::vector<RunningAttempt> running;
};

/// One end of a measurement of the network between two machines.
struct LinkOrder {
  int64_t request_id = 0;
  std::string token;  ///< The same at both ends.
  double limit_seconds = 0;
  std::string host;  ///< Of the end that listens; empty: listen.
  int64_t port = 0;
};

/// What one end of it says.
struct LinkAnswer {
  int64_t request_id = 0;
  std::string error;  ///< Empty on success.
  int64_t port = 0;   ///< Of the end that listens.
  double send_bytes_per_second = 0;
  double receive_bytes_per_second = 0;
  double round_trip_seconds = 0;
};

/// What a worker found when it checked its machine.
struct HealthAnswer {
  int64_t request_id = 0;
  std::string error;    ///< Empty: nothing is wrong.
  int64_t device = -1;  ///< GPU that it is wrong with; -1: the machine.
};

/// What a worker is ordered to run. Delivered at least once.
struct StartOrder {
  std::string job_id;
  int64_t epoch = 0;
  JobSpec spec;
  Plan plan;
  std::vector<int64_t> ranks;
  std::string run_dir;
  double mean_seconds_between_failures = 0;  ///< Of as many machines; 0: not known.
  int64_t membership = 0;                    ///< Newest, where ranks come and go.
  bool joins = false;                        ///< The attempt runs already.
};

/// The way back to one attached worker. Thread-safe; what is sent after the stream broke is lost.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual void SendRegistered(double lease_seconds, double heartbeat_seconds,
                              const std::vector<AttemptKey>& adopted) = 0;
  /// Says why the worker is not taken, and ends the stream.
  virtual void Refuse(const std::string& why) = 0;
  virtual void AckHeartbeat(int64_t sequence) = 0;
  virtual void Start(const StartOrder& order) = 0;
  virtual void Stop(const std::string& job_id, int64_t epoch, bool graceful) = 0;
  /// Sent again until the worker says that its ranks know it.
  virtual void SetMembership(const MembershipOrder& order) = 0;
  /// `report`, as it came, is stored.
  virtual void AckReport(const std::string& job_id, const PlacementReport& report) = 0;
  /// The log that `logs` are of is stored up to `position`.
  virtual void AckLogs(const LogAppend& logs, int64_t position) = 0;
  virtual void ReplyStore(int64_t request_id, const Result<std::string>& value) = 0;
  /// Rank 0 of the attempt shall record steps.
  virtual void Profile(int64_t request_id, const AttemptKey& attempt, int64_t steps) = 0;
  virtual void MeasureLink(const LinkOrder& order) = 0;
  /// The worker shall check its machine.
  virtual void CheckHealth(int64_t request_id, double limit_seconds) = 0;
  /// Ends the stream.
  virtual void Close() = 0;
};

}  // namespace weft::coordinator
