#pragma once

#include <cstdint>

#include "common/spec/plan.h"

namespace weft {

/// Of `data_ranks` data-parallel ranks so many share out among them what `zero_stage` says, where a
/// job or plan asks for groups of `zero_shard_ranks` (0: one group); 1: each has all.
inline int64_t ShardRanks(int64_t zero_stage, int64_t zero_shard_ranks, int64_t data_ranks) {
  if (zero_stage == 0 || data_ranks == 1) return 1;
  return zero_shard_ranks > 0 ? zero_shard_ranks : data_ranks;
}

inline int64_t ShardRanks(const Plan& plan) {
  return ShardRanks(plan.zero_stage, plan.zero_shard_ranks, plan.mesh.data * plan.mesh.expert);
}

}  // namespace weft
