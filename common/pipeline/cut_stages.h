#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/status.h"

namespace weft {

/// The speed and the memory of the machine of a stage.
struct StageMachine {
  double slowness = 1;  ///< Seconds that it takes for a cost of one.
  int64_t most_blocks = std::numeric_limits<int64_t>::max();  ///< That it has the memory for.
};

/// Cuts a row of blocks into a stage of one block or more for each of `machines`, in their order,
/// so that the stage that takes longest takes as little as possible, and of such cuts the one that
/// is most even (least sum of squares). `first` and `last` are the costs of what comes before the
/// first block and after the last one: embedding and classifier, layers like others. Returns the
/// number of blocks of each stage. kInvalid with more stages than blocks, kExhausted where the
/// machines do not have the memory for all blocks.
Result<std::vector<int64_t>> CutStages(const std::vector<double>& blocks, double first, double last,
                                       const std::vector<StageMachine>& machines);

}  // namespace weft
