#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/queue_spec.h"
#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {

/// A queue with what its jobs, and those of the queues below it, hold and wait for.
struct QueueUse {
  QueueSpec spec;
  ComputeAmount used;
  int64_t running_jobs = 0;
  int64_t waiting_jobs = 0;
  double fair_share_ratio = 0;  ///< What it holds over its fair share.
};

/// A job that has not ended, as far as queues count it.
struct QueuedUse {
  std::string queue;
  ComputeAmount held;  ///< Of one that runs.
  bool waits = false;
};

/// All queues, the default one among them, in the order in which they are declared. The fair share
/// of a queue is that of the queue above it (of the whole cluster: `total`), divided by weight
/// among its siblings. It counts GPUs or cores, whichever the queue holds more of its share of.
/// Jobs of a queue that is not declared any more count for the default one.
std::vector<QueueUse> QueueUses(const QueuesSpec& queues, const ComputeAmount& total,
                                const std::vector<QueuedUse>& jobs);

}  // namespace weft::coordinator
