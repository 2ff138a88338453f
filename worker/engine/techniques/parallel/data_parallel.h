#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/techniques/parallel/gradient_buckets.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/train/gradient_reducer.h"

namespace weft::engine {

/// Data parallelism: every rank computes the gradient of its own sequences, and their sum is formed
/// while the backward pass goes on. A bucket of gradients is all-reduced as soon as the last
/// parameter in it is complete, one bucket after the other in the same order on all ranks. Over
/// Gloo the bits of the result depend on nothing but the gradients of the ranks, not on the
/// buckets.
class DataParallel : public GradientReducer {
 public:
  /// `group` and `parameters` (allocated with gradients, on the device of the group) outlive this.
  /// `stream` is where gradients are computed.
  DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes,
               Stream stream = {});

  /// Waits for the reductions that are under way.
  ~DataParallel() override;

  /// From now on gradients travel in bf16: each rank's are rounded, added in f32 and rounded again.
  /// Halves the bytes on the wire for 2 bytes of memory an element. Before the first step.
  Status ReduceInBFloat16(Context& context);

  int64_t world_size() const override { return group_->size(); }
  Status Begin(bool last_micro_batch) override;
  Status OnGradientReady(int64_t index) override;
  Status Finish() override;
  Status SumScalars(std::span<double> values) override;
  Status Maximum(const TensorView& values) override;

  /// Tells `profiler` (null: nobody) of each collective of the group from now on. Between steps.
  void SetProfiler(Profiler* profiler) { group_->account().SetProfiler(profiler); }

  const BucketLayout& layout() const { return layout_; }

 private:
  TensorView Gradients(int64_t bucket) const;
  TensorView Narrow(int64_t bucket) const;

  Collective* group_;
  const Stream stream_;
  const TensorView gradients_;
  BucketLayout layout_;
  Tensor narrow_;                 ///< The gradients in bf16, where they travel so.
  std::vector<int64_t> missing_;  ///< By bucket: parameters that are not complete yet.
  std::vector<Work> works_;       ///< By bucket, of this step.
  bool last_micro_batch_ = false;
  Status status_;  ///< First failure; the group is broken from then on.
};

}  // namespace weft::engine
