#pragma once

#include "common/status.h"
#include "weft/v1/coordinator.pb.h"

namespace weft::cli {

/// What `weft` returns to the shell; listed by `weft help exit-codes` and in docs/cli.md.
enum class ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNotFound = 3,
  kPermission = 4,
  kConflict = 5,
  kUnavailable = 6,
  kExhausted = 7,
  kCancelled = 8,
  kJobFailed = 10,
  kJobCancelled = 11,
  kWaitTimedOut = 12,
  kInterrupted = 130,
};

inline ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ExitCode::kOk;
    case StatusCode::kInvalid:
      return ExitCode::kUsage;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kConflict:
      return ExitCode::kConflict;
    case StatusCode::kUnavailable:
      return ExitCode::kUnavailable;
    case StatusCode::kExhausted:
      return ExitCode::kExhausted;
    case StatusCode::kAborted:
      return ExitCode::kCancelled;
    case StatusCode::kCorrupt:
    case StatusCode::kInternal:
      return ExitCode::kFailed;
    case StatusCode::kDenied:
      return ExitCode::kPermission;
  }
  return ExitCode::kFailed;
}

/// The code of a job that has ended.
inline ExitCode ExitCodeOf(v1::JobState state) {
  if (state == v1::SUCCEEDED) return ExitCode::kOk;
  return state == v1::CANCELLED ? ExitCode::kJobCancelled : ExitCode::kJobFailed;
}

inline bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

/// Whether a job in `from` may still come to `to` without a user's doing: one that has ended stays
/// as it is, one that is being cancelled can only end. Others may be started again.
inline bool CanReach(v1::JobState from, v1::JobState to) {
  if (from == to) return true;
  if (IsTerminal(from)) return false;
  return from != v1::CANCELLING || to == v1::SUCCEEDED || to == v1::CANCELLED;
}

}  // namespace weft::cli
