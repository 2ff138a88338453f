#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace weft::engine {

/// Learning rate of step `step` (from 0) of `total_steps`: a linear rise over the warm-up steps,
/// whose last has the peak rate, then constant, or falling linearly or by half a cosine
/// (Loshchilov and Hutter 2017, arXiv 1608.03983) to peak * final_ratio at the last step.
double ScheduledLearningRate(const ScheduleSpec& schedule, double peak, int64_t step,
                             int64_t total_steps);

}  // namespace weft::engine
