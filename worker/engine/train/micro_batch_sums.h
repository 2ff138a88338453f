#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/exact_sum.h"
#include "common/status.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/techniques/parallel/micro_batch_tree.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Losses, added without rounding.
struct ExactLoss {
  ExactSum sum;
  int64_t right = 0;

  void Add(const BatchLoss& loss) {
    sum.Add(loss.sum);
    right += loss.right;
  }
};

/// What the micro-batches of a step leave on this rank with train.deterministic mesh: each has its
/// own gradients, which are added in a MicroBatchTree, parameter by parameter, and its own loss. On
/// a CPU. Not thread-safe.
class MicroBatchSums {
 public:
  /// `parameters` outlives this. Without `adds_gradients` the losses alone: a reducer that places
  /// gradients adds these itself. kExhausted without memory.
  static Result<std::unique_ptr<MicroBatchSums>> New(Context& context, ParameterSet* parameters,
                                                     int64_t micro_batches, bool adds_gradients);

  bool adds_gradients() const { return adds_gradients_; }

  /// A step begins.
  void Start();

  /// Where the gradient of parameter `index` of the next micro-batch is to be written.
  TensorView PlaceGradient(int64_t index);

  /// That gradient is there. True when it was the one of the last micro-batch: the gradient of
  /// the ParameterSet is then the sum.
  Result<bool> OnGradient(const Stream& stream, int64_t index);

  /// The step is over for parameter `index`. One that no micro-batch has used gets a zero gradient,
  /// and true is the answer. kInternal for one that only some have used.
  Result<bool> ClearUnused(const Stream& stream, int64_t index);

  /// Where a micro-batch adds its loss,
  BatchLoss* loss() { return &loss_of_one_; }
  /// and that it has.
  void OnLoss();

  /// The loss of all micro-batches of the step.
  const ExactLoss& total_loss() const { return total_loss_; }

 private:
  MicroBatchSums(ParameterSet* parameters, int64_t micro_batches, bool adds_gradients)
      : parameters_(parameters), micro_batches_(micro_batches), adds_gradients_(adds_gradients) {}

  ParameterSet* parameters_;
  const int64_t micro_batches_;
  const bool adds_gradients_;
  MicroBatchTree tree_;
  std::vector<int64_t> next_;  ///< By parameter: the number of its next micro-batch.
  BatchLoss loss_of_one_;
  ExactLoss total_loss_;
};

}  // namespace weft::engine
