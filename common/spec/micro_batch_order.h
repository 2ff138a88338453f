#pragma once

#include <cstdint>

#include "common/spec/deterministic_mesh.h"
#include "common/spec/plan.h"
#include "common/spec/shard_ranks.h"

namespace weft {

/// Successive data-parallel ranks that take turns with the micro-batches of a step. With 1 each
/// rank has micro-batches that follow each other. With train.deterministic mesh, ranks that add up
/// each micro-batch before the next one (ZeRO stages 2 and 3) take those that are neighbours in the
/// tree.
inline int64_t RanksTakingTurns(const TrainSpec& train, const Plan& plan) {
  return IsMeshDeterministic(train) && plan.zero_stage > 1 ? ShardRanks(plan) : 1;
}

/// Which micro-batch of all ranks number `k` of the `micro_batches` of data-parallel rank `rank`
/// is, where `turns` ranks take turns.
inline int64_t MicroBatchNumber(int64_t rank, int64_t k, int64_t micro_batches, int64_t turns) {
  return (rank / turns * micro_batches + k) * turns + rank % turns;
}

}  // namespace weft
