#pragma once

#include <cstdint>

#include "common/spec/plan.h"

namespace weft {

/// Of `ranks` that sum their gradients, whether they see other sequences or other parts of them, so
/// many partition among themselves what `zero_stage` says, where a job or plan asks for groups of
/// `zero_shard_ranks` (0: one group); 1: each has all.
inline int64_t ShardRanks(int64_t zero_stage, int64_t zero_shard_ranks, int64_t ranks) {
  if (zero_stage == 0 || ranks == 1) return 1;
  return zero_shard_ranks > 0 ? zero_shard_ranks : ranks;
}

/// Ranks that hold the same parameters, but for experts, and so sum their gradients.
inline int64_t GradientRanks(const Mesh& mesh) {
  return mesh.data * mesh.context * mesh.expert;
}

inline int64_t ShardRanks(const Plan& plan) {
  return ShardRanks(plan.zero_stage, plan.zero_shard_ranks, GradientRanks(plan.mesh));
}

}  // namespace weft
