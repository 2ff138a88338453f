#pragma once

#include <memory>

#include "common/spec/plan.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Makes the reducer that brings the gradients of `replicas`, ranks that have the same parameters,
/// together as `plan` says; null where there is no group. All outlive it; all ranks of the group
/// call it. `gathered`: the type in which matrices are gathered (GatheredMatrices); `same_experts`:
/// as BucketReducer has it. kInvalid as ShardedDataParallel::New has it.
Result<std::unique_ptr<BucketReducer>> NewReducer(Context& context, const Plan& plan,
                                                  Collective* replicas, ParameterSet* parameters,
                                                  DType gathered,
                                                  Collective* same_experts = nullptr);

/// Makes the reducer of outer steps, which brings together what `workers` have learned: ranks that
/// have the same part of workers that make local steps; null where there is no group. `worker`: the
/// ranks of this one that have the same parameters, or none. All outlive it.
std::unique_ptr<BucketReducer> NewOuterReducer(Context& context, const Plan& plan,
                                               Collective* workers, Collective* worker,
                                               ParameterSet* parameters);

}  // namespace weft::engine
