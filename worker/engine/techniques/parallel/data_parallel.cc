#include "worker/engine/techniques/parallel/data_parallel.h"

namespace weft::engine {

DataParallel::DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes,
                           Stream stream, Collective* same_experts)
    : BucketReducer(group, parameters, bucket_bytes, stream, same_experts),
      parameters_(parameters) {}

DataParallel::~DataParallel() {
  WaitForAll();
}

TensorView DataParallel::Sums(int64_t bucket) const {
  const GradientBucket& all = this->bucket(bucket);
  return parameters_->HeldGradients({all.begin, all.end});
}

Work DataParallel::Sum(Collective* replicas, const TensorView& values) {
  if (replicas == nullptr) return Work();
  return replicas->AllReduce(stream(), values, Reduction::kSum, "all-reduce gradients");
}

Result<Work> DataParallel::Reduce(int64_t bucket) {
  Collective* const replicas = ReplicasOf(bucket);
  if (replicas == nullptr) return Work();
  WEFT_ASSIGN_OR_RETURN(const TensorView values, ToWire(Sums(bucket), CopyOf(bucket)));
  return Sum(replicas, values);
}

Result<Work> DataParallel::ReduceAt(int64_t bucket, const Tensor& memory) {
  return Sum(ReplicasOf(bucket), memory);
}

}  // namespace weft::engine
