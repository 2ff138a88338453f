#pragma once

#include <cstddef>

#include "common/spec/job_spec.h"

namespace weft {

/// Floating-point operations of learning the growth operator of phase `phase` of `job`, which comes
/// before the steps of the phase (growth.method ligo): growth.fit_steps steps of its model, and the
/// products of the operator, as engine::LearnedGrowth counts them. 0 where nothing is learned.
double GrowthFitFlops(const JobSpec& job, size_t phase);

}  // namespace weft
