#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft {

/// What a job saves by keeping parameters frozen, compared with a job that trains the same network
/// whole: without frozen names, adapters and quantised weights.
struct FrozenSavings {
  /// FLOPs of the gradients of weights that a mean step skips, of all ranks together. Adapters have
  /// gradients of their own, which are not taken off.
  double weight_gradient_flops = 0;
  /// Bytes of activations that a micro-batch does not keep for its backward pass, at the peak of a
  /// rank; of a pipeline of a rank as if it had all stages. What adapters keep is taken off; never
  /// negative.
  int64_t activation_bytes = 0;
};

/// The savings of `plan`, a plan of `job`. All 0 where nothing is frozen. Sizes of an imported
/// model must have been put into job.model before.
FrozenSavings SavingsOfFrozen(const JobSpec& job, const Plan& plan);

}  // namespace weft
