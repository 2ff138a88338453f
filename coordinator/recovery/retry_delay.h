#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/store/records.h"

namespace weft::coordinator {

/// How long a job waits after a failed attempt: exponential back-off with jitter.
struct RetryRules {
  double first_seconds = 1;   ///< After the first failure; doubles with each further one in a row.
  double most_seconds = 300;  ///< Cap.
};

/// Whether an attempt that has ended failed. One that stopped as it was asked to did not.
bool HasFailed(const AttemptRecord& attempt);

/// Failures in a row up to and including `attempt`, which has ended, when there were `before` up to
/// the one before it. An attempt that saved a checkpoint (`checkpoint_step`: the job's newest) ends
/// the row: what failed then has nothing to do with what failed before. Attempts up to epoch
/// `retried_from` do not count.
int64_t FailuresInARow(int64_t before, const AttemptRecord& attempt,
                       std::optional<int64_t> checkpoint_step, int64_t retried_from);

/// Seconds to wait after `failures` (at least 1) in a row. Between half and all of the doubled
/// time, so that jobs that failed together do not come back together; the same for the same job and
/// epoch.
double RetryDelaySeconds(const RetryRules& rules, int64_t failures, const std::string& job_id,
                         int64_t epoch);

}  // namespace weft::coordinator
