#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/techniques/parallel/parameter_gatherer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Data parallelism whose ranks share the updates (Rajbhandari et al. 2020, "ZeRO", stages 1 to
/// 3). A bucket of gradients has a part for each rank, all of the same length. Reductions leave
/// each rank the sum of its part alone; it keeps the optimizer's state of these elements, updates
/// them, and the ranks gather the parameters from each other. Of N numbers of gradients and values
/// each rank sends (n-1)/n twice, as an all-reduce does.
///
/// Where gradients are placed (stage 2) a bucket has memory only from the first gradient in it to
/// the end of its reduction, which comes in every micro-batch; the sums of this rank's parts over
/// them stand in a buffer of their own. Where values are sharded (stage 3) a ParameterGatherer
/// brings them, and nothing is gathered after an update.
class ShardedDataParallel : public BucketReducer {
 public:
  /// `context`, `group` and `parameters`, on the device of the group and shared among its ranks
  /// (ParameterSet::ShareAmong), outlive this. `products`: the type of operands of products.
  /// kInvalid when the ranks cannot share them: over-parameterised weights, bf16 matrices whose
  /// stacks are cut at odd places.
  static Result<std::unique_ptr<ShardedDataParallel>> New(Context& context, Collective* group,
                                                          ParameterSet* parameters,
                                                          int64_t bucket_bytes, DType products);

  /// Waits for what is under way.
  ~ShardedDataParallel() override;

  std::span<const ParameterPart> parts() const override { return parts_; }
  Status GatherParameters() override;
  Status Begin(bool last_micro_batch) override;
  bool places_gradients() const override { return static_cast<bool>(sums_); }
  Result<TensorView> PlaceGradient(int64_t index) override;
  Status Finish() override;

 private:
  ShardedDataParallel(Context& context, Collective* group, ParameterSet* parameters,
                      int64_t bucket_bytes);

  /// Elements of gradients() that are `rank`'s part of a bucket.
  ParameterSet::Range PartOfBucket(int64_t bucket, int64_t rank) const;
  /// What that is of the parameters, in rising order; parts may be empty. `gradients`: where those
  /// of the range are.
  std::vector<ParameterPart> PartsIn(const ParameterSet::Range& range, float* gradients) const;
  /// Where this rank has the sums of its part of a bucket.
  TensorView Sums(int64_t bucket) const;
  Status MakeParts();
  Result<Work> Reduce(int64_t bucket) override;

  /// The reduction of the oldest bucket under way is done: adds it to the sums and frees it.
  Status Settle();

  // Values of different types do not stand as gradients do: they are packed for the way.
  Status MakeStaging(Context& context);
  Status GatherStaged(int64_t bucket);

  Context* context_;
  ParameterSet* parameters_;
  Tensor sums_;                                  ///< Where gradients are placed.
  std::vector<Tensor> memory_;                   ///< By bucket, likewise.
  bool placed_ = false;                          ///< A gradient of this micro-batch.
  std::vector<bool> summed_;                     ///< By bucket: sums_ has something of this step.
  std::deque<int64_t> under_way_;                ///< Buckets, in the order of their reductions.
  std::vector<ParameterPart> parts_;             ///< By trained parameter.
  std::vector<Work> gathers_;                    ///< By bucket.
  std::vector<int64_t> staged_bytes_;            ///< By bucket: of the part of one rank, at most.
  Tensor staging_;                               ///< The most of these for each rank, or none.
  std::unique_ptr<ParameterGatherer> gatherer_;  ///< Of sharded values.
};

}  // namespace weft::engine
