#pragma once

#include <cstdint>
#include <vector>

#include "common/model/optimal_chain.h"
#include "common/model/remat_schedule.h"

namespace weft {

/// A long chain as a shorter one: in each run of equal stages, up to `group` neighbours are one
/// stage. The stages of a group all do the same, and a segment has whole groups. So every schedule
/// of the coarse chain is one of the chain, which takes the time and the memory that the coarse
/// chain says. The reverse does not hold, and this bounds what that loses: the fastest coarse
/// schedule within M bytes is no slower than the fastest one of the chain within M less what one
/// group keeps. Measured on chains that can be solved exactly (coarse_chain_test.cc), where it also
/// is within 3 % of the fastest once M is an eighth of what keeping all takes.
struct CoarseChain {
  std::vector<ChainStage> stages;
  std::vector<int64_t> begins;  ///< First stage of each group in the chain, then their number.
};

/// Coarsens to `most` stages where possible; runs that differ are not put together.
CoarseChain Coarsen(const std::vector<ChainStage>& chain, int64_t most);

/// A schedule of the coarse chain as one of the chain.
RematPlan Refine(const RematPlan& plan, const CoarseChain& coarse);

}  // namespace weft
