#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "worker/daemon/attempt.h"
#include "worker/daemon/rank_process.h"
#include "worker/daemon/rank_pulse.h"
#include "worker/daemon/recent_steps.h"

namespace weft::daemon {

/// What the daemon knows of a rank of an attempt.
struct Attempt::Rank {
  Rank(std::chrono::nanoseconds now, std::chrono::nanoseconds longest_spin)
      : pulse(now, longest_spin) {}

  int index = 0;
  RankPulse pulse;
  RecentSteps steps;  // without validation and checkpoints
  std::unique_ptr<RankProcess> process;
  bool ended = false;
  int wait_status = 0;           // set only when the rank ended before it was killed from here
  bool finished = false;         // said that it trained to the end
  bool stopped = false;          // said that it stopped and saved
  std::optional<Status> failed;  // said why it failed
  bool in_failures = false;
  double data_wait_seconds = 0;  // of all steps
  int64_t saved_bytes = 0;       // as in the newest ActivityMessage, as is the next
  int64_t sequences = 0;
  double busy_seconds = 0;  // mean of a step lately, without waiting for others; 0: none yet
};

}  // namespace weft::daemon
