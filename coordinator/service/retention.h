#pragma once

#include <chrono>
#include <cstdint>

namespace weft::coordinator {

/// What the coordinator forgets by itself, and when. Only jobs that have ended are forgotten.
struct RetentionRules {
  std::chrono::hours jobs{90 * 24};     ///< After their end; 0: never.
  bool run_folders = false;             ///< Their run folders go with them.
  int64_t events_per_job = 1000;        ///< The newest ones stay.
  std::chrono::hours lost_workers{24};  ///< Since they were last heard of; 0: never.
  std::chrono::nanoseconds sweep_every = std::chrono::hours(1);
};

}  // namespace weft::coordinator
