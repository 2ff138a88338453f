#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/heap_optional.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/store/attempt_times.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What views of a job that has not ended add to its stored record.
struct Overlay {
  HeapOptional<Progress> progress;
  Reason reason = Reason::kNone;
  std::string message;
  std::optional<WaitDecision> wait;  ///< While it is queued.
  int64_t waiting = 0;               ///< Jobs that waited with it.
  double decided_at = 0;             ///< When that was decided; seconds since 1970.
  int64_t epoch = 0;                 ///< Of the newest attempt,
  AttemptTimes times;                ///< and what it took so far.
  std::string straggler;             ///< Who holds it up while it runs; empty: nobody.
};

}  // namespace weft::coordinator
