#pragma once

#include <string>

#include "common/status.h"

namespace weft::daemon {

/// Leaves `<data_dir>/daemon.json` with this process's pid and metrics port, for CheckHealth and
/// for whoever let the kernel choose the port.
Status WriteHealthFile(const std::string& data_dir, int metrics_port);

/// Asks the daemon of `data_dir` for its metrics and prints what it found. Returns 0 when it is
/// attached to its coordinator, else 1: the exit code of a container probe.
int CheckHealth(const std::string& data_dir);

}  // namespace weft::daemon
