#include "worker/engine/techniques/parallel/new_reducer.h"

#include <utility>

#include "common/spec/shard_ranks.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/parallel/outer_reducer.h"
#include "worker/engine/techniques/parallel/sharded_data_parallel.h"

namespace weft::engine {

Result<std::unique_ptr<BucketReducer>> NewReducer(Context& context, const Plan& plan,
                                                  Collective* replicas, ParameterSet* parameters,
                                                  DType gathered, Collective* same_experts) {
  if (replicas == nullptr) return std::unique_ptr<BucketReducer>();
  std::unique_ptr<BucketReducer> reducer;
  if (plan.zero_stage > 0) {
    WEFT_ASSIGN_OR_RETURN(reducer,
                          ShardedDataParallel::New(context, replicas, ShardRanks(plan), parameters,
                                                   plan.bucket_bytes, gathered, same_experts));
  } else {
    reducer = std::make_unique<DataParallel>(replicas, parameters, plan.bucket_bytes,
                                             context.stream, same_experts);
  }
  if (plan.gradient_reduction == "bf16") reducer->ReduceInBFloat16(context);
  return reducer;
}

std::unique_ptr<BucketReducer> NewOuterReducer(Context& context, const Plan& plan,
                                               Collective* workers, Collective* worker,
                                               ParameterSet* parameters) {
  if (workers == nullptr) return nullptr;
  if (worker == nullptr) {
    return std::make_unique<DataParallel>(workers, parameters, plan.bucket_bytes, context.stream);
  }
  return std::make_unique<OuterReducer>(workers, worker, parameters, plan.bucket_bytes,
                                        context.stream);
}

}  // namespace weft::engine
