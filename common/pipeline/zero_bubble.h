#pragma once

#include <cstdint>

#include "common/pipeline/schedule.h"
#include "common/pipeline/simulate.h"

namespace weft {

/// One stage a rank, with the gradients of weights in the places where ranks would wait (Qi et al.
/// 2023, arXiv 2401.10241). No rank keeps more than `most_kept` micro-batches, from the forward
/// step to the gradient of the weights: `costs.stages.size()` gives the memory of 1F1B (ZB-H1),
/// twice as many less one no bubble between a rank's first step and its last (ZB-H2). The best of
/// the paper's hand-made order and of list schedules with various patience, by SimulatePipeline; so
/// it is never slower than 1F1B where memory allows that one. kInvalid when there is no stage or
/// most_kept < 1.
Result<PipelineSchedule> ZeroBubbleSchedule(const PipelineCosts& costs, int64_t micro_batches,
                                            int64_t most_kept);

}  // namespace weft
