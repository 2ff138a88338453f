#pragma once

#include <cstdint>

#include "common/spec/plan.h"

namespace weft {

/// The size of a shard group of `zero_stage`, where a job or plan asks for groups of
/// `zero_shard_ranks` (0: one group); 1: each rank has all. `ranks` sum their gradients: they are
/// data-parallel and context-parallel.
inline int64_t ShardRanks(int64_t zero_stage, int64_t zero_shard_ranks, int64_t ranks) {
  if (zero_stage == 0 || ranks == 1) return 1;
  return zero_shard_ranks > 0 ? zero_shard_ranks : ranks;
}

/// Ranks that hold the same parameters, except experts, and so sum their gradients.
inline int64_t GradientRanks(const Mesh& mesh) {
  return mesh.data * mesh.context * mesh.expert;
}

inline int64_t ShardRanks(const Plan& plan) {
  return ShardRanks(plan.zero_stage, plan.zero_shard_ranks, GradientRanks(plan.mesh));
}

}  // namespace weft
