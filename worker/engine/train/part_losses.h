#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/techniques/parallel/pipeline_parallel.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/training_ranks.h"

namespace weft::engine {

/// The sums of the losses of each part of batches that have sequences of several jobs
/// (TechniqueCost::JointJobs). Does nothing where they are of one. Not thread-safe.
class PartLosses {
 public:
  /// Makes those of one job.
  PartLosses() = default;
  /// Zero, of `parts` equal parts of each batch. kExhausted without memory on the device.
  static Result<PartLosses> New(Context& context, int64_t parts);

  /// How many are distinguished; 0: none.
  size_t parts() const { return parts_; }

  /// Enqueues that all become zero.
  Status Clear(Context& context);

  /// Gives a batch, before its forward pass, the memory for the loss at each position.
  Status Prepare(Context& context, TokenBatch& batch) const;
  /// Enqueues, after it, that they are added up.
  Status Add(Context& context, const TokenBatch& batch) const;

  /// Waits for them and sums them over the ranks that sum their gradients and over the stages of
  /// `pipeline` (null: there is none), where the last one alone has losses. All ranks call this.
  Result<std::vector<double>> Sum(Context& context, const TrainingRanks& ranks,
                                  const PipelineParallel* pipeline);

 private:
  size_t parts_ = 0;
  ReadbackOf<BatchLoss> sums_;
};

}  // namespace weft::engine
