#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace weft::testing {

/// Begins the ids of the jobs that AddWaitingJobs adds.
inline constexpr char kWaitingPrefix[] = "waiting-";

/// Puts a paused job, and `count` jobs that wait for its success, into the database that a
/// coordinator with this data folder opens: no change of the cluster starts them. The coordinator
/// must not run. 0: nothing is added.
Status AddWaitingJobs(const std::string& data_dir, int64_t count);

}  // namespace weft::testing
