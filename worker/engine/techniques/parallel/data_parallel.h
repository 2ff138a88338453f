#pragma once

#include <cstdint>

#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Data parallelism: every rank computes the gradient of its own sequences, their sum is formed on
/// all of them, and all make the same update. With expert parallelism the gradients of experts
/// already come from the sequences of all expert-parallel ranks, and are summed over the ranks with
/// the same experts.
class DataParallel : public BucketReducer {
 public:
  /// `group` and `parameters` (allocated with gradients, on the device of the group) outlive this.
  /// `stream` is where gradients are computed. `same_experts`: as BucketReducer has it.
  DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes,
               Stream stream = {}, Collective* same_experts = nullptr);

  /// Waits for the reductions that are under way.
  ~DataParallel() override;

  Result<Work> ReduceAt(int64_t bucket, const Tensor& memory) override;
  TensorView Sums(int64_t bucket) const override;

 private:
  Result<Work> Reduce(int64_t bucket) override;
  TensorView Reduced(int64_t bucket) const override { return Sums(bucket); }
  /// The ranks that have the same of it; none where this one is alone with it.
  Collective* ReplicasOf(int64_t bucket) const {
    return this->bucket(bucket).of_experts ? same_experts() : group();
  }
  Work Sum(Collective* replicas, const TensorView& values);

  const ParameterSet* const parameters_;
};

}  // namespace weft::engine
