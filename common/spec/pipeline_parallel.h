#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether the blocks of what `job` trains can be placed on `degree` ranks, on each in `chunks`
/// stages, and steps go by this schedule in `micro_batches` (0: not known yet). kInvalid says what
/// does not go, and what would. Sizes of an imported model are those of its folder, and not looked
/// at.
Status CheckPipelineParallel(const JobSpec& job, int64_t degree, const std::string& schedule,
                             int64_t chunks, int64_t micro_batches);

/// Whether every step of `train` can go by this schedule in `micro_batches`, those of a full batch:
/// interleaved ones go in groups of as many as there are ranks.
bool TakesMicroBatches(const TrainSpec& train, int64_t degree, const std::string& schedule,
                       int64_t micro_batches);

}  // namespace weft
