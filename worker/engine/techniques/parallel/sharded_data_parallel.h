#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Data parallelism whose ranks share the updates (Rajbhandari et al. 2020, "ZeRO", stage 1). A
/// bucket of gradients has a part for each rank, all of the same length. Reductions leave each rank
/// the sum of its part alone; it keeps the optimizer's state of these elements, updates them, and
/// the ranks gather the parameters from each other. Of N numbers of gradients and values each rank
/// sends (n-1)/n twice, as an all-reduce does.
class ShardedDataParallel : public BucketReducer {
 public:
  /// `group` and `parameters`, on the device of the group and shared among its ranks
  /// (ParameterSet::ShareAmong), outlive this. kInvalid when the ranks cannot share them:
  /// over-parameterised weights, bf16 matrices whose stacks are cut at odd places.
  static Result<std::unique_ptr<ShardedDataParallel>> New(Context& context, Collective* group,
                                                          const ParameterSet* parameters,
                                                          int64_t bucket_bytes);

  /// Waits for what is under way.
  ~ShardedDataParallel() override;

  std::span<const ParameterPart> parts() const override { return parts_; }
  Status GatherParameters() override;

 private:
  ShardedDataParallel(Context& context, Collective* group, const ParameterSet* parameters,
                      int64_t bucket_bytes);

  /// Elements of gradients() that are `rank`'s part of a bucket.
  ParameterSet::Range PartOfBucket(int64_t bucket, int64_t rank) const;
  /// What that is of the parameters, in rising order; ranges may be empty.
  std::vector<ParameterPart> PartsIn(const ParameterSet::Range& range) const;
  Status MakeParts();
  Result<Work> Reduce(int64_t bucket) override;

  // Values of different types do not stand as gradients do: they are packed for the way.
  Status MakeStaging(Context& context);
  Status GatherStaged(int64_t bucket);

  const ParameterSet* parameters_;
  std::vector<ParameterPart> parts_;  ///< By trained parameter.
  std::vector<Work> gathers_;         ///< By bucket.
  int64_t staged_bytes_ = 0;          ///< Of the part of one rank, at most.
  Tensor staging_;                    ///< So many bytes for each rank, or none.
};

}  // namespace weft::engine
