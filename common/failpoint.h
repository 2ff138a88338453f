#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// Named places where tests make a process fail. Off unless the environment variable
/// WEFT_FAILPOINTS names them: a comma-separated list of `name=action[@N]`, where action is
/// `error` (the call fails with kInternal), `full` (fails with kExhausted, like a full disk),
/// `crash` (kills the process with SIGKILL, nothing flushed), `sleep:MILLISECONDS` or
/// `spin:MILLISECONDS` (busy all the while), and @N means "only the Nth time" (default every time).
/// Names are in docs/operations.md. Thread-safe; costs one relaxed load when nothing is set.
Status Failpoint(std::string_view name);

/// Replaces the configuration of this process (the same text as WEFT_FAILPOINTS). For tests.
Status SetFailpoints(const std::string& config);

}  // namespace weft
