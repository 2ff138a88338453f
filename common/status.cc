#include "common/status.h"

#include <cerrno>
#include <cstring>

namespace weft {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInvalid:
      return "INVALID";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kConflict:
      return "CONFLICT";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kExhausted:
      return "EXHAUSTED";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kCorrupt:
      return "CORRUPT";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kDenied:
      return "DENIED";
  }
  return "INTERNAL";
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_, kind_};
}

Status ErrnoError(std::string_view what, int error_number) {
  StatusCode code = StatusCode::kInternal;
  FailureKind kind = FailureKind::kOther;
  switch (error_number) {
    case ENOENT:
    case ESRCH:
      code = StatusCode::kNotFound;
      break;
    case EEXIST:
      code = StatusCode::kConflict;
      break;
    case EINVAL:
    case EACCES:
    case EPERM:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case EROFS:
      code = StatusCode::kInvalid;
      break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      kind = FailureKind::kDiskFull;
      code = StatusCode::kExhausted;
      break;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      code = StatusCode::kExhausted;
      break;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case EADDRINUSE:
      code = StatusCode::kUnavailable;
      break;
    default:
      break;
  }
  return {code, std::string(what) + ": " + std::strerror(error_number), kind};
}

}  // namespace weft
