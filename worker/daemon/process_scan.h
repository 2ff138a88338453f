#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace weft::daemon {

/// Pids of the living processes of this machine whose environment at their start held every entry
/// of `environment` ("NAME=value"). Children that moved to another process group or session are
/// found too; the caller itself is left out. Processes of other users are not seen.
std::vector<pid_t> FindProcesses(const std::vector<std::string>& environment);

/// Kills every such process until none is left; kInternal names those that are still there after
/// `timeout`. Blocks.
Status KillProcesses(const std::vector<std::string>& environment,
                     std::chrono::milliseconds timeout);

}  // namespace weft::daemon
