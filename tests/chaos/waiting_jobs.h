#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace weft::testing {

/// Begins the ids of the jobs that AddWaitingJobs adds.
inline constexpr char kWaitingPrefix[] = "waiting-";

/// Puts a paused job, and `count` jobs that no change of the cluster starts, into the database that
/// a coordinator with this data folder opens. Half of them wait for the success of the paused one;
/// the scheduler looks at the other half, which want more ranks than there are. The coordinator
/// must not run. 0: nothing is added.
Status AddWaitingJobs(const std::string& data_dir, int64_t count);

}  // namespace weft::testing
