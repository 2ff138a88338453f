#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/techniques/parallel/gradient_buckets.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/train/gradient_reducer.h"

namespace weft::engine {

/// Data parallelism: every rank computes the gradient of its own sequences, and their sum is formed
/// while the backward pass goes on. A thread all-reduces each bucket of gradients as soon as the
/// last parameter in it is complete, one bucket after the other in the same order on all ranks, so
/// the bits of the result depend on nothing but the gradients, the ranks and the bucket size.
class DataParallel : public GradientReducer {
 public:
  /// `group` and `parameters` (allocated with gradients) outlive this; while a reduction is under
  /// way nobody else uses the group.
  DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes);

  /// Waits for the collective under way; those not begun are dropped.
  ~DataParallel() override;

  int64_t world_size() const override { return group_->size(); }
  Status Begin(bool last_micro_batch) override;
  Status OnGradientReady(int64_t index) override;
  Status Finish() override;
  Status SumScalars(std::span<double> values) override;

  /// Tells `profiler` (null: nobody) of each collective from now on. Between steps.
  void SetProfiler(Profiler* profiler);

  const BucketLayout& layout() const { return layout_; }

  /// Time the thread has spent in collectives since construction. What of it the training had to
  /// wait for, the caller of Finish measures.
  double communication_seconds() const;

 private:
  void Communicate();

  Collective* group_;
  std::span<float> gradients_;
  BucketLayout layout_;
  std::vector<int64_t> missing_;  ///< By bucket: parameters that are not complete yet.
  bool last_micro_batch_ = false;

  mutable std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::deque<int64_t> queue_;  ///< Buckets to reduce.
  bool communicating_ = false;
  bool closing_ = false;
  int64_t reduced_ = 0;  ///< Buckets of this step.
  double communication_seconds_ = 0;
  Profiler* profiler_ = nullptr;
  Status status_;  ///< First failure; the group is broken from then on.

  std::thread thread_;
};

}  // namespace weft::engine
