#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/plan.h"

namespace weft::planner {

/// Rows of cells as aligned columns; the first row is the heading. Numbers are right-aligned.
std::string AlignedRows(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<bool>& align_right);

/// "42 %".
std::string Percent(double part, double whole);

/// Blocks with that policy for their saved tensors.
int64_t BlocksWith(const Plan& plan, std::string_view policy);

/// "6 of 12 blocks, attention of 2".
std::string RecomputedText(const Plan& plan);

/// What ranks partition among themselves, and how many do.
std::string SharedText(const Plan& plan);

/// "optimizer on the host, activations on the host"; nothing where all is on the device.
std::string OutsideText(const Plan& plan);

/// "8 data x 2 tensor x 4 pipeline (zero_bubble), ZeRO 1": degrees of parallelism, and what of
/// it is outside the device.
std::string MeshText(const Plan& plan);

/// "w1 x 4 (GPUs 0, 1, 2, 3), w2 x 2": which worker has how many ranks.
std::string PlacementText(const Plan& plan);

}  // namespace weft::planner
