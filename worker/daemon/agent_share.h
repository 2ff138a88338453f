#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "common/env.h"
#include "worker/daemon/agent.h"

namespace weft::daemon {

/// Lines of the ranks of an attempt that are here at one time.
struct Agent::RankLog {
  int32_t first_rank;
  LogBuffer lines;
  int64_t sent = 0;  // on this connection

  RankLog(const Settings& settings, const Attempt& attempt)
      : first_rank(attempt.first_rank()),
        lines(Env::Posix(),
              JoinPath(settings.log_dir, attempt.job_id() + "-" + std::to_string(attempt.epoch()) +
                                             "-" + std::to_string(first_rank)),
              LogBuffer::Limits{}) {}
};

/// An attempt, and what of it the coordinator does not know yet.
struct Agent::Placement {
  Attempt attempt;
  std::list<RankLog> logs;                       // of ranks that were here before, then of these
  std::deque<v1::AttemptReport> reports;         // not acknowledged, oldest first
  size_t reports_sent = 0;                       // of them, on this connection
  std::deque<v1::CheckpointReport> checkpoints;  // newest
  std::map<std::string, v1::StoreRequest> set;   // what its ranks have set, by key
  std::chrono::nanoseconds ended_at{0};
  std::optional<v1::StartAttempt> next;  // ranks that start here once these are over

  Placement(boost::asio::io_context& io, const Clock& clock, const Settings& settings,
            const v1::StartAttempt& start, AttemptListener& listener, Metrics& metrics)
      : attempt(io, clock, settings.attempt, start, listener, metrics) {
    logs.emplace_back(settings, attempt);
  }

  int64_t WaitingLines() const {
    int64_t waiting = 0;
    for (const RankLog& log : logs) waiting += log.lines.last() - log.lines.acknowledged();
    return waiting;
  }
  /// Nothing of it is left to do or report.
  bool Settled() const { return attempt.over() && reports.empty() && WaitingLines() == 0; }
};

struct Agent::StoreCall {
  v1::StoreRequest request;
  StoreAnswer answer;
};

}  // namespace weft::daemon
