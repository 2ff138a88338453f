#pragma once

#include <algorithm>
#include <cstdint>

#include "common/spec/local_steps.h"
#include "common/spec/plan.h"
#include "common/spec/shard_ranks.h"
#include "common/spec/train_spec.h"

namespace weft {

/// Data-parallel ranks that hold a part of the training state each, or with local steps one of
/// their own; the others hold the same as they.
inline int64_t SavingReplicas(const TrainSpec& train, const Plan& plan) {
  if (MakesLocalSteps(train)) return plan.mesh.data;
  // Expert-parallel ranks shard updates, too.
  return std::max<int64_t>(ShardRanks(plan) / plan.mesh.expert, 1);
}

/// Ranks that save a part of a checkpoint each.
inline int64_t SavingRanks(const TrainSpec& train, const Plan& plan) {
  return SavingReplicas(train, plan) * plan.mesh.tensor * plan.mesh.expert * plan.mesh.pipeline;
}

}  // namespace weft
