#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/nn/device_staging.h"
#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/techniques/parallel/micro_batch_tree.h"
#include "worker/engine/techniques/parallel/parameter_gatherer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Data parallelism whose ranks shard the updates (Rajbhandari et al. 2020, "ZeRO", stages 1 to
/// 3). A bucket of gradients has a part for each rank, all of the same length. Reductions leave
/// each rank the sum of its part alone; it keeps the optimizer's state of these elements, updates
/// them, and the ranks gather the parameters from each other. Of N numbers of gradients and values
/// each rank sends (n-1)/n twice, as an all-reduce does.
///
/// Shard groups may be smaller, of ranks that follow each other (Zhang et al. 2022, "MiCS", arXiv
/// 2205.00119): what all groups have reduced is then summed once a step by all-reduces of parts
/// between the ranks that have the same, and gathers stay within a group.
///
/// With expert parallelism, ranks with the same experts shard the updates of these: buckets of
/// experts have parts for these ranks alone, and a rank updates alone what it alone has.
///
/// Derived matrices (ParameterList::Derive) are updated through their sources, whose gradients
/// follow from their whole ones: each rank gets the sums of these, among all ranks of the group,
/// and its technique computes the gradients of all sources. The rank updates its part of them. What
/// is stacked with a derived matrix is reduced with it; the rank updates its part of each tensor.
/// Where gradients are placed it has a part of these sums, too: SplitDerived gathers them bucket by
/// bucket once a step, and keeps of the gradients of sources, one matrix at a time, its part.
///
/// Where gradients are placed (stage 2) a bucket has memory only from the first gradient in it to
/// the end of its reduction, which comes in every micro-batch; the sums of this rank's parts over
/// them are in a buffer of their own. Where values are sharded (stage 3) a ParameterGatherer
/// brings them, and nothing is gathered after an update.
///
/// Parameters in the host memory pool have sums and the buffer of gathers there, too, and
/// OffloadedGradients places gradients; with a CUDA device all that ranks exchange passes through
/// the device (DeviceStaging). Parameters in a file (nn/parameter_file.h) have their sums there as
/// well, which OffloadedGradients cuts; they are in memory while a bucket is added up. Values are
/// gathered unit by unit.
class ShardedDataParallel : public BucketReducer {
 public:
  /// `context`, `group` and `parameters`, on the device of the group and sharded over `shard_ranks`
  /// of its ranks (ParameterSet::ShareAmong), outlive this. `products`: the type of operands of
  /// products; `same_experts`: as BucketReducer has it. All ranks of the group call it. kInvalid
  /// when the ranks cannot shard them: groups that are not of equal size, and groups with only a
  /// part of the expert-parallel ranks.
  static Result<std::unique_ptr<ShardedDataParallel>> New(Context& context, Collective* group,
                                                          int64_t shard_ranks,
                                                          ParameterSet* parameters,
                                                          int64_t bucket_bytes, DType products,
                                                          Collective* same_experts = nullptr);

  /// Waits for what is under way.
  ~ShardedDataParallel() override;

  std::span<const ParameterPart> parts() const override { return parts_; }
  bool shares_updates() const override { return true; }
  Status GradientsMoved() override {
    MakeParts();
    return OkStatus();
  }
  bool first_shards() const override { return group()->rank() < shards_->size(); }
  Status SumOverParts(std::span<double> values) override;
  Result<std::vector<float>> GatherParts(int64_t index, std::span<const float> own) override;
  int64_t held_bytes() const override;
  std::vector<CollectiveRecorder*> recorders() const override;
  /// The shard group, and the ranks that have the same parts as this one; null for none.
  Collective& shards() const { return *shards_; }
  Collective* replicas() const { return replicas_.get(); }
  std::vector<AxisAccount> Accounts() const override;
  Status GatherParameters() override;
  Status Begin(bool last_micro_batch) override;
  bool places_gradients() const override { return parameters_->places_gradients(); }
  Status SumInTree(int64_t micro_batches) override;
  Result<TensorView> PlaceGradient(int64_t index) override;
  Status Finish() override;
  Status SplitDerived(std::span<const int64_t> derived, const Split& split) override;
  Result<Work> ReduceAt(int64_t bucket, const Tensor& memory) override;
  ParameterSet::Range Kept(int64_t bucket) const override;
  TensorView Sums(int64_t bucket) const override;
  Status SumOverGroups() override;

 private:
  ShardedDataParallel(Context& context, Collective* group, ParameterSet* parameters,
                      int64_t bucket_bytes, Collective* same_experts);

  Status SplitGroup(int64_t shard_ranks);
  /// The ranks that have parts of a bucket; none where this one has all of it.
  Collective* ShardGroupOf(int64_t bucket) const {
    return this->bucket(bucket).of_experts ? expert_shards_ : shards_;
  }
  int64_t ShardGroupSize(int64_t bucket) const;
  /// The number of this rank among them.
  int64_t OwnPart(int64_t bucket) const;
  /// Elements of gradients() that are `rank`'s part of a bucket.
  ParameterSet::Range PartOfBucket(int64_t bucket, int64_t rank) const;
  /// The same of an updated parameter: maybe none.
  ParameterSet::Range PartOfParameter(int64_t index, int64_t rank) const;
  /// What `rank` updates of a bucket, in rising order, without gradients.
  std::vector<ParameterPart> PartsOf(int64_t bucket, int64_t rank) const;
  void MakeParts();
  /// Where gradients are placed: takes memory for the sums.
  Status MakeSums(Context& state);
  /// Where the gradient of `part` of an updated parameter is summed.
  float* SumOf(int64_t index, const ParameterSet::Range& part) const;
  /// Likewise: of a bucket of derived matrices, see SplitDerived.
  Status SplitBucket(int64_t bucket, const Split& split);
  /// Likewise for one such matrix, whose gradient is whole.
  Status SplitMatrix(int64_t index, const Split& split);
  /// Keeps this rank's part of a whole gradient that is summed.
  Status KeepPart(int64_t index);
  Result<Work> Reduce(int64_t bucket) override;
  TensorView Reduced(int64_t bucket) const override;
  /// Reduces what is in `values`, the gradients of a bucket or their copy, to each rank's part.
  Work Scatter(int64_t bucket, const TensorView& values);

  /// The reduction of the oldest bucket under way is done: adds what was placed to the sums and
  /// frees it, and when it was the last one of the step sends the sums to other groups.
  Status Settle();
  Status AddPlaced(int64_t bucket);

  Status StartSumOverGroups(int64_t bucket);
  Work SumOfGroups(const TensorView& values);
  Status WaitForGroups();

  /// Values, and the byte at which they are among those of all ranks on their way.
  struct Packed {
    TensorView values;
    int64_t at = 0;
  };
  /// What `rank` has of a bucket. Values of different types are not laid out as gradients are: they
  /// are packed one parameter behind the other.
  std::vector<Packed> PackedOf(int64_t bucket, int64_t rank) const;
  Status MakeStaging(Context& context);
  Status GatherStaged(int64_t bucket);
  /// The same of a bucket in whose place all ranks have theirs.
  Work GatherInPlace(int64_t bucket);
  /// The same of what is stacked with derived matrices, in its place.
  Work ExchangeParts(int64_t bucket);
  /// The same of values in the host memory pool of a CUDA device.
  Status GatherThrough(DeviceStaging& staging, int64_t bucket);
  /// Gathers values in a file.
  Status GatherInFile();

  struct InFlight {
    int64_t bucket = 0;
    bool last = false;  ///< Of the step.
  };

  Context* context_;
  ParameterSet* parameters_;
  Collective* shards_;         ///< The group, or owned_shards_.
  Collective* expert_shards_;  ///< Those of them that have the same experts; none but this one.
  std::unique_ptr<Collective> owned_shards_;
  std::unique_ptr<Collective> owned_expert_shards_;  ///< Of groups.
  std::unique_ptr<Collective> replicas_;             ///< Of this rank in other groups, or none.
  bool last_micro_batch_ = false;
  Tensor sums_;                            ///< Where gradients are placed.
  std::vector<int64_t> first_sum_;         ///< By bucket: its first element of sums_.
  std::vector<int64_t> stacked_sum_;       ///< By parameter in one of derived ones, of its part.
  std::vector<Tensor> memory_;             ///< By bucket, likewise.
  std::vector<int64_t> unit_of_;           ///< By bucket whose gradients were placed.
  bool placed_ = false;                    ///< A gradient of this micro-batch.
  std::vector<int64_t> summed_;            ///< By bucket: micro-batches of this step in sums_.
  std::unique_ptr<MicroBatchTree> tree_;   ///< That adds them up, or none.
  std::deque<InFlight> in_flight_;         ///< In the order of their reductions.
  std::vector<Work> sums_of_groups_;       ///< By bucket, of this step.
  std::vector<Tensor> copies_for_groups_;  ///< By bucket of these that is under way, in bf16.
  std::vector<ParameterPart> parts_;       ///< By updated parameter.
  std::vector<Work> gathers_;              ///< By bucket.
  std::vector<int64_t> part_bytes_;        ///< By bucket: of the part of one rank, at most.
  Tensor staging_;                         ///< The most that one is for all, or none.
  const bool through_device_;              ///< What ranks exchange of the host memory pool.
  std::unique_ptr<ParameterGatherer> gatherer_;  ///< Of sharded values.
};

}  // namespace weft::engine
