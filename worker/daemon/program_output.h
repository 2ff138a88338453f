#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/status.h"

namespace weft::daemon {

/// The environment of this process for a program that is to see exactly `devices`, in this order.
std::vector<std::string> EnvironmentWith(const std::vector<DeviceSpec>& devices);

/// The standard output of a program that ends well within `patience`, without the last line ends.
/// kUnavailable when it fails, with its last words; kAborted when it takes longer, or `stop` (null:
/// never) becomes true, and it was killed.
Result<std::string> OutputOf(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment,
                             std::chrono::milliseconds patience,
                             const std::atomic<bool>* stop = nullptr);

}  // namespace weft::daemon
