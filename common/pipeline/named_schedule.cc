#include "common/pipeline/named_schedule.h"

#include <utility>
#include <vector>

#include "common/pipeline/zero_bubble.h"

namespace weft {
namespace {

/// By stage and micro-batch.
using Message = std::pair<int64_t, int32_t>;

// What goes from stage to stage + `direction`, where ranks send it or, `receives`, wait for it; by
// rank that sends, since each sends to one other.
std::vector<std::vector<Message>> Messages(const PipelineSchedule& schedule, int64_t direction,
                                           bool receives) {
  std::vector<std::vector<Message>> messages(static_cast<size_t>(schedule.ranks));
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    for (const PipelineStep& step : schedule.steps[static_cast<size_t>(rank)]) {
      if (step.op == PipelineOp::kBackwardWeight) continue;
      if ((step.op == PipelineOp::kForward) != (direction > 0)) continue;
      const int64_t stage = schedule.StageOf(rank, step.chunk);
      const int64_t from = receives ? stage - direction : stage;
      if (from < 0 || from >= schedule.stages() || from + direction < 0 ||
          from + direction >= schedule.stages()) {
        continue;
      }
      messages[static_cast<size_t>(from % schedule.ranks)].emplace_back(from, step.micro_batch);
    }
  }
  return messages;
}

}  // namespace

Result<PipelineSchedule> UncheckedSchedule(const std::string& name, int64_t ranks, int64_t chunks,
                                           int64_t micro_batches) {
  if (ranks < 1 || chunks < 1 || micro_batches < 1) {
    return InvalidError("a pipeline of " + std::to_string(ranks) + " ranks with " +
                        std::to_string(chunks) + " stages each and " +
                        std::to_string(micro_batches) +
                        " micro-batches; hint: at least one of each");
  }
  if (name == "interleaved") return InterleavedSchedule(ranks, chunks, micro_batches);
  if (chunks > 1) {
    return InvalidError("a pipeline with schedule " + name + " has one stage a rank, not " +
                        std::to_string(chunks) + "; hint: interleaved");
  }
  if (name == "gpipe") return GPipeSchedule(ranks, micro_batches);
  if (name == "1f1b") return OneForwardOneBackwardSchedule(ranks, micro_batches);
  if (name == "zero_bubble") {
    // Stages are cut to cost the same, and so do the three passes of a block.
    const std::vector<StageCost> stages(static_cast<size_t>(ranks), StageCost{1, 1, 1, 1});
    return ZeroBubbleSchedule({stages, 0}, micro_batches, ranks);
  }
  return InvalidError("pipeline schedule '" + name +
                      "' is not known; hint: gpipe, 1f1b, interleaved or zero_bubble");
}

Status CheckMessageOrder(const PipelineSchedule& schedule) {
  for (const int64_t direction : {1, -1}) {
    const auto sent = Messages(schedule, direction, false);
    const auto received = Messages(schedule, direction, true);
    for (size_t rank = 0; rank < sent.size(); ++rank) {
      for (size_t i = 0; i < sent[rank].size(); ++i) {
        if (i < received[rank].size() && sent[rank][i] == received[rank][i]) continue;
        return InvalidError("rank " + std::to_string(rank) + " of the pipeline sends what stage " +
                            std::to_string(sent[rank][i].first) + " has of micro-batch " +
                            std::to_string(sent[rank][i].second) +
                            " when its neighbour waits for something else");
      }
    }
  }
  return OkStatus();
}

Result<PipelineSchedule> NamedSchedule(const std::string& name, int64_t ranks, int64_t chunks,
                                       int64_t micro_batches) {
  WEFT_ASSIGN_OR_RETURN(PipelineSchedule schedule,
                        UncheckedSchedule(name, ranks, chunks, micro_batches));
  WEFT_RETURN_IF_ERROR(CheckSchedule(schedule));
  WEFT_RETURN_IF_ERROR(CheckMessageOrder(schedule));
  return schedule;
}

}  // namespace weft
