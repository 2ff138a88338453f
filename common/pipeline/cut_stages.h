#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"

namespace weft {

/// Cuts a row of blocks into `stages` successive stages of one block or more, so that the most
/// costly stage costs as little as possible, and of such cuts the one that is most even (least sum
/// of squares). `first` and `last` are the costs of what stands before the first block and after
/// the last one: embedding and classifier, layers like others. Returns the number of blocks of each
/// stage. kInvalid with more stages than blocks.
Result<std::vector<int64_t>> CutStages(const std::vector<double>& blocks, double first, double last,
                                       int64_t stages);

}  // namespace weft
