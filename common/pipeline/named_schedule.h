#pragma once

#include <cstdint>
#include <string>

#include "common/pipeline/schedule.h"
#include "common/status.h"

namespace weft {

/// The schedule that a plan names: "gpipe", "1f1b", "interleaved" (the only one with several
/// `chunks` a rank) or "zero_bubble" (with the memory of 1F1B). A function of its arguments alone,
/// so that all ranks and the planner have the same lists. It has passed CheckSchedule and
/// CheckMessageOrder; kInvalid otherwise.
Result<PipelineSchedule> NamedSchedule(const std::string& name, int64_t ranks, int64_t chunks,
                                       int64_t micro_batches);

/// The same without these checks, which all schedules of that name pass: for those who look at
/// many.
Result<PipelineSchedule> UncheckedSchedule(const std::string& name, int64_t ranks, int64_t chunks,
                                           int64_t micro_batches);

/// Whether each rank sends to another what that one waits for, in the same order: then messages of
/// a kind need no names. kInvalid names the first that would be taken for another one.
Status CheckMessageOrder(const PipelineSchedule& schedule);

}  // namespace weft
