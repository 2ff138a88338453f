#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/recovery/ledger.h"
#include "coordinator/service/network_links.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// A job for people: as stored, with the newest progress and the reason why it waits.
struct JobView {
  JobRecord job;
  std::vector<AttemptRecord> attempts;  ///< Oldest first.
  Ledger ledger = {};
};

struct JobPage {
  std::vector<JobSummary> jobs;     ///< With the newest progress and the reason why they wait.
  int64_t next_before_ordinal = 0;  ///< For the next page; 0: this was the last.
};

struct DeletedJob {
  std::string id;
  std::string kept_run_dir;  ///< Its run folder, where that is still there; else empty.
};

struct SubmitResult {
  JobView view;
  bool already_submitted = false;
};

/// What a recording of a running job gave.
struct JobProfile {
  std::string job_id;
  std::string report_json;
};

enum class WorkerState { kReady, kDisconnected, kLost };
inline constexpr int kWorkerStates = 3;

/// Where the network rate of a worker comes from, best first.
enum class NetworkSource { kGiven, kMeasured, kAssumed };

struct WorkerView {
  WorkerProfile profile;
  WorkerState state = WorkerState::kDisconnected;
  std::vector<std::string> job_ids;
  double last_heartbeat_at = 0;
  std::string version;
  std::string machine;
  double network_bytes_per_second = 0;  ///< As plans have it.
  NetworkSource network_source = NetworkSource::kAssumed;
  std::vector<LinkView> links;
  WorkerScheduling scheduling = WorkerScheduling::kSchedulable;
  std::string scheduling_why;  ///< Why it is not kSchedulable.
  double suspicion = 0;
};

/// Why a job is where it is and, while it waits, what for and how long.
struct JobExplanation {
  std::string id;
  JobState state = JobState::kQueued;
  Reason reason = Reason::kNone;
  std::string message;
  int64_t position = 0;  ///< Among the jobs that wait, from 1; 0: it does not, or not known yet.
  int64_t waiting = 0;   ///< Jobs that wait.
  std::optional<double> start_in_seconds;  ///< From now; nullopt: not known.
  std::optional<double> earliest_start_in_seconds;
  std::optional<double> latest_start_in_seconds;
  std::vector<std::string> would_start_now;  ///< What would start it now, in words.
  std::vector<std::string> blocked_by;       ///< Jobs that it waits behind, or whose room it needs.
};

}  // namespace weft::coordinator
