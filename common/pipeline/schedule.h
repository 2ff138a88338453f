#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace weft {

/// What a rank does next in a pipeline. A backward pass is one step, or two where the gradient of
/// the weights waits until there is time for it (Qi et al. 2023, "Zero Bubble Pipeline
/// Parallelism", arXiv 2401.10241).
enum class PipelineOp : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight };

/// "F", "B", "I" or "W".
std::string_view PipelineOpName(PipelineOp op);

struct PipelineStep {
  PipelineOp op = PipelineOp::kForward;
  int32_t chunk = 0;  ///< Which of the rank's stages.
  int32_t micro_batch = 0;

  bool operator==(const PipelineStep&) const = default;
};

/// Who does what in which order: all that the engine executes and the planner costs. The model is
/// cut into ranks x chunks stages; stage s is on rank s mod ranks. A forward step needs that of
/// the stage before for the same micro-batch, a backward step that of the stage after (kBackward or
/// kBackwardInput). Messages are buffered: who sends does not wait.
struct PipelineSchedule {
  int64_t ranks = 1;
  int64_t chunks = 1;  ///< Stages of a rank.
  int64_t micro_batches = 1;
  bool split_backward = false;  ///< Backward passes are kBackwardInput and kBackwardWeight.
  std::vector<std::vector<PipelineStep>> steps = {};  ///< By rank, in order.

  int64_t stages() const { return ranks * chunks; }
  int64_t StageOf(int64_t rank, int64_t chunk) const { return chunk * ranks + rank; }
};

/// All forward passes, then all backward passes (Huang et al. 2019, GPipe, arXiv 1811.06965).
PipelineSchedule GPipeSchedule(int64_t ranks, int64_t micro_batches);

/// One forward, one backward (Narayanan et al. 2019, PipeDream; with a flush, as in Megatron-LM):
/// rank r keeps at most ranks - r micro-batches.
PipelineSchedule OneForwardOneBackwardSchedule(int64_t ranks, int64_t micro_batches);

/// The same with several stages a rank, which divides the bubble by `chunks` (Narayanan et al.
/// 2021, arXiv 2104.04473, section 2.2). kInvalid unless micro_batches is a multiple of ranks, or
/// chunks is 1.
Result<PipelineSchedule> InterleavedSchedule(int64_t ranks, int64_t chunks, int64_t micro_batches);

/// Whether every rank does each of its steps exactly once, no step before what it needs on the same
/// rank, and all ranks come to their ends: kInvalid names the first step that cannot run.
Status CheckSchedule(const PipelineSchedule& schedule);

/// One letter and the micro-batch of each step, chunks by apostrophes, a line a rank: for people.
std::string FormatSchedule(const PipelineSchedule& schedule);

}  // namespace weft
