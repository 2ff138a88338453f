#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/techniques/parallel/gradient_buckets.h"
#include "worker/engine/techniques/parallel/gradient_reducer.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Reduces gradients bucket by bucket while the backward pass goes on: a bucket is on its way as
/// soon as the last parameter in it is complete, one behind the other in the same order on all
/// ranks. Over Gloo the bits of the result depend on nothing but the gradients of the ranks, not on
/// the buckets.
class BucketReducer : public GradientReducer {
 public:
  int64_t world_size() const override { return group_->size(); }
  int64_t held_bytes() const override;
  std::vector<CollectiveRecorder*> recorders() const override;
  Status Begin(bool last_micro_batch) override;
  Status OnGradientReady(int64_t index) override;
  Status Finish() override;
  Status SumScalars(std::span<double> values) override;
  Status Maximum(const TensorView& values) override;

  /// For buckets that are elsewhere (OffloadedGradients), which then are not reported to
  /// OnGradientReady: reduces the gradients of one at `memory`, in place, so that those of Kept()
  /// are summed.
  virtual Result<Work> ReduceAt(int64_t bucket, const Tensor& memory) = 0;
  /// The elements of gradients() in a bucket whose sums this rank wants,
  virtual ParameterSet::Range Kept(int64_t bucket) const {
    return {this->bucket(bucket).begin, this->bucket(bucket).end};
  }
  /// and where it keeps them.
  virtual TensorView Sums(int64_t bucket) const = 0;
  /// All Sums() of the shard group are there: adds those of the other groups.
  virtual Status SumOverGroups() { return OkStatus(); }

  /// From now on gradients are sent in bf16: each rank's are rounded, added in f32 over Gloo, and
  /// rounded again, into 2 bytes an element of a bucket under way. Before the first step, and not
  /// for ReduceAt. `context` outlives this.
  void ReduceInBFloat16(Context& context);

  /// The accounts of groups that it has made of its own.
  virtual std::vector<AxisAccount> Accounts() const { return {}; }

  const BucketLayout& layout() const { return layout_; }

 protected:
  /// `group` and `parameters` outlive this. `stream` is where gradients are computed. With expert
  /// parallelism `same_experts` are the ranks of the group with the same experts as this one; none
  /// where it is alone with them.
  BucketReducer(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes,
                Stream stream, Collective* same_experts);

  /// Enqueues the reduction of a bucket whose gradients are complete.
  virtual Result<Work> Reduce(int64_t bucket) = 0;

  /// The tensor that is sent for f32 values, and stays until they have come: the values themselves,
  /// or a copy in bf16 in `copy`.
  Result<TensorView> ToWire(const TensorView& values, Tensor& copy);
  /// Takes what has come of them: these elements of the copy, if there is one, which then goes.
  Status FromWire(Tensor& copy, int64_t first, const TensorView& values);
  /// The copy of a bucket under way, see ToWire.
  Tensor& CopyOf(int64_t bucket) { return copies_[static_cast<size_t>(bucket)]; }
  /// Where of the memory that `bucket` is reduced in this rank has what it keeps.
  virtual TensorView Reduced(int64_t bucket) const = 0;

  /// Waits for the reduction of a bucket of this step, whose first failure all later calls return.
  /// What it keeps is then at Reduced().
  Status WaitFor(int64_t bucket);

  /// The reduction of a bucket is known to be over, so that WaitFor returns at once.
  bool IsReduced(int64_t bucket) const { return works_[static_cast<size_t>(bucket)].Done(); }

  /// Waits until no reduction is under way: before the memory of one goes.
  void WaitForAll();

  const GradientBucket& bucket(int64_t index) const {
    return layout_.buckets[static_cast<size_t>(index)];
  }
  int64_t bucket_count() const { return static_cast<int64_t>(layout_.buckets.size()); }
  Collective* group() const { return group_; }
  Collective* same_experts() const { return same_experts_; }
  const Stream& stream() const { return stream_; }

 private:
  Collective* group_;
  Collective* same_experts_;
  const Stream stream_;
  BucketLayout layout_;
  std::vector<int64_t> missing_;  ///< By bucket: parameters that are not complete yet.
  std::vector<Work> works_;       ///< By bucket, of this step.
  std::vector<Tensor> copies_;    ///< By bucket that is under way, where it is sent in bf16.
  Context* context_ = nullptr;    ///< Of these copies, or none.
  bool reduces_ = false;          ///< In this micro-batch.
  Status status_;                 ///< First failure; the group is broken from then on.
};

}  // namespace weft::engine
