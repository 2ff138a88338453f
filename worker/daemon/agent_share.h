#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "common/env.h"
#include "worker/daemon/agent.h"

namespace weft::daemon {

/// An attempt, and what of it the coordinator does not know yet.
struct Agent::Placement {
  Attempt attempt;
  LogBuffer logs;
  int64_t lines_sent = 0;                        // on this connection
  std::deque<v1::AttemptReport> reports;         // not acknowledged, oldest first
  size_t reports_sent = 0;                       // of them, on this connection
  std::deque<v1::CheckpointReport> checkpoints;  // newest
  std::map<std::string, v1::StoreRequest> set;   // what its ranks have set, by key
  std::chrono::nanoseconds ended_at{0};

  Placement(boost::asio::io_context& io, const Clock& clock, const Settings& settings,
            const v1::StartAttempt& start, AttemptListener& listener, Metrics& metrics)
      : attempt(io, clock, settings.attempt, start, listener, metrics),
        logs(Env::Posix(),
             JoinPath(settings.log_dir, start.job_id() + "-" + std::to_string(start.epoch())),
             LogBuffer::Limits{}) {}

  /// Nothing of it is left to do or report.
  bool Settled() const { return attempt.over() && reports.empty() && logs.empty(); }
};

struct Agent::StoreCall {
  v1::StoreRequest request;
  StoreAnswer answer;
};

}  // namespace weft::daemon
