#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether the heads of `model` divide by `degree` ranks that attend together by `method`, "ring"
/// or "ulysses", where of `tensor_columns` ranks each has as many heads. kInvalid names the size
/// that does not divide.
Status CheckContextParallel(const ModelSpec& model, int64_t degree, const std::string& method,
                            int64_t tensor_columns);

/// Checks all that the job says, the length of its sequences too. Sizes of an imported model
/// are those of its folder, and not looked at.
Status CheckContextParallel(const JobSpec& job, int64_t degree, const std::string& method);

}  // namespace weft
