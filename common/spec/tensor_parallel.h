#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether each matrix of `model` can be sharded over `degree` tensor-parallel ranks in equal
/// parts, as a grid of `rows` rows. kInvalid names the size that does not divide, and what would
/// do. Sizes that are still open (vocab_size 0) are taken to fit.
Status CheckTensorParallel(const ModelSpec& model, int64_t degree, int64_t rows = 1);

/// Checks all sizes that the job says: with `sequence_parallel` the length of its sequences,
/// too. Sizes of an imported model are those of its folder, and not looked at.
Status CheckTensorParallel(const JobSpec& job, int64_t degree, bool sequence_parallel,
                           int64_t rows = 1);

}  // namespace weft
