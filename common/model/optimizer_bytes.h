#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/spec/job_spec.h"

namespace weft {

/// Memory of the updates.
struct OptimizerBytes {
  int64_t state = 0;      ///< Of rule, averages and outer steps, without alignment.
  int64_t workspace = 0;  ///< While an update runs.
};

/// What the optimizer of `job`, its averages of the weights and its outer steps take. `model` with
/// vocab_size resolved; `products`: the type of the operands of matrix products; on one of
/// `expert_ranks` ranks that share the experts.
OptimizerBytes OptimizerBytesOf(const ModelSpec& model, const JobSpec& job, DType products,
                                int64_t expert_ranks = 1);

}  // namespace weft
