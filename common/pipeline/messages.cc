#include "common/pipeline/messages.h"

#include <algorithm>
#include <array>

namespace weft {
namespace {

/// Whether a step takes something from the neighbour on that side, or sends something there: not
/// the first stage of all, nor the last one. Weights' gradients do neither, nor does what is before
/// the first stage that gets gradients.
bool Meets(const PipelineSchedule& schedule, int64_t rank, const PipelineStep& step,
           PipelineSide side, int64_t first_trained = 0) {
  if (step.op == PipelineOp::kBackwardWeight) return false;
  const int64_t stage = schedule.StageOf(rank, step.chunk);
  const int64_t first = step.op == PipelineOp::kForward ? 0 : first_trained;
  return side == PipelineSide::kNext ? stage + 1 < schedule.stages() && stage >= first
                                     : stage > first;
}

/// Or else it takes something.
bool Sends(const PipelineStep& step, PipelineSide side) {
  return (step.op == PipelineOp::kForward) == (side == PipelineSide::kNext);
}

}  // namespace

std::vector<int64_t> TakenBeforeSending(const PipelineSchedule& schedule, int64_t rank,
                                        PipelineSide side, int64_t first_trained) {
  std::vector<int64_t> taken_before;
  int64_t taken = 0;
  for (const PipelineStep& step : schedule.steps[static_cast<size_t>(rank)]) {
    if (!Meets(schedule, rank, step, side, first_trained)) continue;
    if (Sends(step, side)) {
      taken_before.push_back(taken);
    } else {
      ++taken;
    }
  }
  return taken_before;
}

int64_t MostMessagesInFlight(const PipelineSchedule& schedule, int64_t rank) {
  struct Side {
    PipelineSide side;
    std::vector<int64_t> told;  ///< By each message that comes.
    size_t came = 0;
    int64_t sent = 0;
    int64_t taken = 0;
  };
  const int64_t next = (rank + 1) % schedule.ranks;
  const int64_t previous = (rank + schedule.ranks - 1) % schedule.ranks;
  std::array<Side, 2> sides = {
      Side{PipelineSide::kNext, TakenBeforeSending(schedule, next, PipelineSide::kPrevious)},
      Side{PipelineSide::kPrevious, TakenBeforeSending(schedule, previous, PipelineSide::kNext)}};
  int64_t most = 0;
  for (const PipelineStep& step : schedule.steps[static_cast<size_t>(rank)]) {
    for (Side& each : sides) {
      if (!Meets(schedule, rank, step, each.side)) continue;
      if (Sends(step, each.side)) {
        ++each.sent;
      } else {
        each.taken = each.told[each.came++];
      }
    }
    most = std::max(most, sides[0].sent - sides[0].taken + sides[1].sent - sides[1].taken);
  }
  return most;
}

}  // namespace weft
