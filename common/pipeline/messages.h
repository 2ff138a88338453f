#pragma once

#include <cstdint>
#include <vector>

#include "common/pipeline/schedule.h"

namespace weft {

/// What a rank of a pipeline and one of its neighbours send each other: activations to the next
/// stages, gradients to those before. A message takes what comes the other way before it for
/// granted: whoever gets it knows that its sender has got all that was sent to it up to then.
enum class PipelineSide : uint8_t { kNext, kPrevious };

/// Counts, for each message that `rank` sends to its neighbour on that side, in order: the messages
/// of the neighbour that it has taken before. Stages before `first_trained` get no gradients.
std::vector<int64_t> TakenBeforeSending(const PipelineSchedule& schedule, int64_t rank,
                                        PipelineSide side, int64_t first_trained = 0);

/// Most messages of `rank` at a time that no message from the other side has acknowledged.
int64_t MostMessagesInFlight(const PipelineSchedule& schedule, int64_t rank);

}  // namespace weft
