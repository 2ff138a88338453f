#pragma once

#include <cstdint>
#include <vector>

#include "common/model/remat_schedule.h"

namespace weft {

/// Seconds of a block and a pass.
struct BlockSeconds {
  double forward = 0;
  double attention = 0;  ///< Of them, inside of attention.
  double backward = 0;   ///< Without what is computed again.
};

/// A step of a plan as the link sees it.
struct StepLoad {
  double forward = 0;   ///< Seconds.
  double backward = 0;  ///< Seconds, of what is computed again as well.
  int64_t bytes = 0;    ///< What it keeps.
};

/// The times of the plan's steps, all of blocks with these times. Bytes are left out.
std::vector<StepLoad> LoadsOf(const RematPlan& plan, const BlockSeconds& block);

/// Seconds that a forward and a backward pass wait for transfers. Each direction of the link
/// carries the steps' transfers one after the other while the device computes.
double TransferWaits(const RematPlan& plan, const std::vector<StepLoad>& loads,
                     double seconds_per_byte);

}  // namespace weft
