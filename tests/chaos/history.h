#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace weft::testing {

/// What a client sees of a job. A model of its own, small enough to be right: the coordinator's
/// table is in coordinator/recovery/state_machine.cc.
enum class ModelState {
  kAbsent,
  kQueued,
  kStarting,
  kRunning,
  kRecovering,
  kPausing,
  kPaused,
  kCancelling,
  kSucceeded,
  kFailed,
  kCancelled,
};
inline constexpr int kModelStates = 11;

std::string_view Name(ModelState state);

/// One call about one job, as its client saw it.
struct Operation {
  enum class Call { kSubmit, kCancel, kRetry, kPause, kResume, kUpdate, kDelete, kLook };
  enum class Outcome {
    kDone,     ///< Answered.
    kRefused,  ///< Answered that the state does not allow it.
    kMissing,  ///< Answered that there is no such job.
    kUnknown,  ///< Not answered: it took effect at some time from `start` on, or never.
  };

  Call call = Call::kLook;
  Outcome outcome = Outcome::kDone;
  int64_t start = 0;  ///< Before the request was sent. Any clock that all clients share.
  int64_t end = 0;    ///< After the answer came; of no meaning when the outcome is unknown.
  ModelState seen = ModelState::kAbsent;  ///< kLook only.
  int64_t priority = 0;                   ///< kUpdate: the new one; kLook: the one seen.
};

/// Who but the callers changes jobs.
enum class Movers {
  kNobody,   ///< No worker is attached.
  kService,  ///< Attempts start and end.
};

/// Whether the calls can have taken effect one after the other, each at one time between its start
/// and its end, such that every answer is right (linearizability; Wing and Gong, "Testing and
/// Verifying Concurrent Objects", 1993). kConflict shows the calls that no order explains.
Status CheckHistory(std::vector<Operation> operations, Movers movers);

}  // namespace weft::testing
