#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/check.h"

namespace weft {

/// Why an operation failed, in the terms that decide what the caller does next.
enum class StatusCode {
  kOk = 0,
  kInvalid,      ///< The request itself is wrong; retrying the same one cannot help.
  kNotFound,     ///< The named thing does not exist.
  kConflict,     ///< The state does not allow it: already exists, stale epoch, terminal state.
  kUnavailable,  ///< A peer or resource is away for now; retry later.
  kExhausted,    ///< Memory, disk, quota or time ran out.
  kAborted,      ///< Stopped on purpose: cancelled, fenced, shutting down.
  kCorrupt,      ///< Stored bytes do not match their format or hash.
  kInternal,     ///< A defect of Weft or of a library it uses.
  kDenied,       ///< The caller is unknown to the other side, or may not do that.
};

/// What callers tell apart among failures of one code. It stays with the failure when context is
/// added.
enum class FailureKind {
  kOther = 0,
  kDiskFull,          ///< Of kExhausted: a disk, a quota or the size of a file, and not memory.
  kUnsupported,       ///< Of kInvalid: it is sound, and of a form that Weft does not read.
  kOutside,           ///< Of kInvalid: a path that leads out of the folders that may be read.
  kDiverged,          ///< A training makes numbers that are not finite.
  kSilentCorruption,  ///< A rank that computed twice has other bits.
};

/// Upper-snake name of a code, for example "NOT_FOUND".
std::string_view StatusCodeName(StatusCode code);

/// Outcome of an operation: OK, or a code with a message for the user. The message says what was
/// attempted, with which value, and after "hint:" what to do about it. Thread-compatible value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, FailureKind kind = FailureKind::kOther)
      : code_(code), kind_(kind), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  FailureKind kind() const { return kind_; }
  const std::string& message() const { return message_; }

  /// "OK", or "INVALID: message".
  std::string ToString() const;

  /// This failure with `context` and ": " before its message; OK stays OK.
  Status WithContext(std::string_view context) const;

  bool operator==(const Status&) const = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  FailureKind kind_ = FailureKind::kOther;
  std::string message_;
};

inline Status OkStatus() {
  return {};
}
inline Status InvalidError(std::string m) {
  return {StatusCode::kInvalid, std::move(m)};
}
inline Status NotFoundError(std::string m) {
  return {StatusCode::kNotFound, std::move(m)};
}
inline Status ConflictError(std::string m) {
  return {StatusCode::kConflict, std::move(m)};
}
inline Status UnavailableError(std::string m) {
  return {StatusCode::kUnavailable, std::move(m)};
}
inline Status ExhaustedError(std::string m) {
  return {StatusCode::kExhausted, std::move(m)};
}
inline Status DiskFullError(std::string m) {
  return {StatusCode::kExhausted, std::move(m), FailureKind::kDiskFull};
}
inline Status AbortedError(std::string m) {
  return {StatusCode::kAborted, std::move(m)};
}
inline Status CorruptError(std::string m) {
  return {StatusCode::kCorrupt, std::move(m)};
}
inline Status InternalError(std::string m) {
  return {StatusCode::kInternal, std::move(m)};
}
inline Status DeniedError(std::string m) {
  return {StatusCode::kDenied, std::move(m)};
}

/// A failure of the C library: `what` followed by the text of `error_number` (errno), compressed by
/// it (ENOENT is kNotFound, ENOMEM kExhausted, ENOSPC and EDQUOT DiskFullError, EEXIST kConflict,
/// ...).
Status ErrnoError(std::string_view what, int error_number);

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    WEFT_CHECK(!status_.ok(), "a Result needs a value or an error");
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  T& value() & {
    WEFT_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    WEFT_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    WEFT_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace weft

/// Returns the Status of `expr` from the enclosing function when it is not OK.
#define WEFT_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                 \
    if (::weft::Status weft_status_ = (expr); !weft_status_.ok()) return weft_status_; \
  } while (false)

#define WEFT_CONCAT_INNER(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_INNER(a, b)

/// Declares or assigns `lhs` from a Result, or returns its Status.
#define WEFT_ASSIGN_OR_RETURN(lhs, expr) \
  WEFT_ASSIGN_OR_RETURN_IMPL(WEFT_CONCAT(weft_result_, __LINE__), lhs, expr)
#define WEFT_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return result.status();           \
  lhs = std::move(result).value()
