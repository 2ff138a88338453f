#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/optimal_chain.h"
#include "common/model/remat_schedule.h"
#include "common/model/transfer_waits.h"
#include "coordinator/planner/chain_cache.h"

namespace weft::planner {

/// What the blocks of a rank do with their saved tensors.
struct RematChoice {
  int64_t recomputed_blocks = 0;  ///< The first ones; of a schedule, all replays.
  int64_t attention_blocks = 0;   ///< After them, those that recompute attention alone.
  RematPlan schedule;             ///< Instead, where it is not empty.
};

struct RematCosts {
  BlockSeconds block;
  double link_seconds_per_byte = 0;  ///< Each way, between the tiers.
};

/// The choice that costs least of those that resources.recompute allows and that fit, which was
/// then the last one that `fits` was asked about; false when none fits, after one that needs least.
/// "optimal" with offload_activations also chooses what waits on the host (OffloadingChain).
/// Memory is that of `inputs` with other choices. Schedules are looked for, and found, in `chains`.
bool ChooseRemat(const std::string& recompute, const MemoryInputs& inputs, const RematCosts& costs,
                 ChainCache& chains, const std::function<bool(const RematChoice&)>& fits);

/// The blocks of `inputs` and what is above them as a chain.
std::vector<ChainStage> ChainOfBlocks(const MemoryInputs& inputs, const RematCosts& costs);

}  // namespace weft::planner
