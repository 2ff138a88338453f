#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace weft::engine {

/// The job's highest learning rate: optimizer.learning_rate times (global_batch / reference_batch),
/// or the root of it, as schedule.batch_scaling says: linearly for SGD (Goyal et al. 2017, arXiv
/// 1706.02677), by the square root for Adam and its kin (You et al. 2020, arXiv 1904.00962).
double PeakLearningRate(const JobSpec& job);

/// Learning rate of step `step` (from 0) of the `steps` of a training, which have
/// schedule.steps_before before them and schedule.steps_after after them: over all of these a
/// linear rise over the warm-up steps, whose last has the peak rate, then
///   constant;
///   linear, cosine (half of it; Loshchilov and Hutter 2017, arXiv 1608.03983): falling to
///     peak * final_ratio at the last step;
///   inverse_sqrt: peak * sqrt(warmup_steps / step) (Vaswani et al. 2017, arXiv 1706.03762);
///   warmup_stable_decay: constant, then falling linearly to peak * final_ratio over the last
///     decay_steps (Hu et al. 2024, arXiv 2404.06395).
double ScheduledLearningRate(const ScheduleSpec& schedule, double peak, int64_t step,
                             int64_t steps);

}  // namespace weft::engine
