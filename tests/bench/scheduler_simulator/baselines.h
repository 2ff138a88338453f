#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {

/// Names of the policies that SimulateBaseline knows.
const std::vector<std::string>& BaselineNames();

/// Runs a textbook policy over the trace on a cluster that counts GPUs and not where they are,
/// which flatters it. A preempted job loses nothing but kRestartSeconds, on all of its GPUs.
///   fifo       the first job waits until it fits, and those after it with it
///   fit_first  in order of submission, those that fit
///   easy       FIFO with a reservation for the first job, and others where they do not delay it
///   sjf        shortest predicted duration first, those that fit
///   srtf       the same by remaining time, with preemption
///   srsf       the same by remaining time x GPUs
///   las_2q     least attained GPU time: two queues, 1 GPU hour apart, with preemption
///   las_4q     four queues: 1, 10 and 100 GPU hours
///   rubick     jobs run on the sizes of ElasticSizes: in order of submission each gets the least,
///              then whoever gains most by a step up; durations are not known to it
///   srsf_elastic
///              the same sizes by remaining time x GPUs: in that order each gets the largest that
///              fits, as long as a size is at least 1.5 times as fast as the one before
Outcome SimulateBaseline(const std::string& policy, const Trace& trace, int64_t gpus,
                         const ScalingCurve& curve);

}  // namespace weft::bench
