#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/tensor_view.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Where the backward passes of one optimizer step leave the gradients of the parameters, and
/// whether each is complete. Buffers are not cleared between steps: the first
/// operation that touches a gradient in a step overwrites it where it can.
class ParameterGradients {
 public:
  using ReadyHook = std::function<Status(int64_t index)>;
  using Placer = std::function<Result<TensorView>(int64_t index)>;

  /// f32, by parameter index; none for a frozen parameter, whose uses count for nothing.
  explicit ParameterGradients(std::vector<TensorView> gradients)
      : gradients_(std::move(gradients)), state_(gradients_.size()) {
    for (size_t i = 0; i < state_.size(); ++i)
      state_[i].trainable = static_cast<bool>(gradients_[i]);
  }

  /// Gradients without memory of their own: each pass writes them anew, or with `carries_sums` adds
  /// to those of the passes before, where `place` says when it first touches one. `trainable`: by
  /// parameter.
  ParameterGradients(const std::vector<bool>& trainable, Placer place, bool carries_sums = false)
      : gradients_(trainable.size()),
        state_(trainable.size()),
        place_(std::move(place)),
        carries_sums_(carries_sums) {
    for (size_t i = 0; i < state_.size(); ++i) state_[i].trainable = trainable[i];
  }

  /// From now on whoever places gradients also takes those of each pass by itself (TakeWritten).
  void TakeByPass() { by_pass_ = true; }

  bool trainable(int64_t index) const { return state_[index].trainable; }

  /// Says that what the buffers hold is of an earlier step.
  void StartStep();

  /// A forward pass starts. In its backward pass `on_ready` (or none) is called once for each
  /// trainable parameter, as soon as its gradient is complete.
  void StartPass(ReadyHook on_ready);

  /// Several forward passes start, with their backward passes between them: a gradient is complete
  /// when those of all passes are. After the last forward pass comes EndForward.
  void StartPasses(ReadyHook on_ready);

  /// After TakeByPass: returns parameters that have been written since the last call, or
  /// StartPasses. What touches one of them next writes it anew. Between steps of a pipeline: each
  /// parameter is written in one of them alone for each of its passes.
  std::vector<int64_t> TakeWritten();

  /// No forward pass of StartPasses follows.
  Status EndForward();

  /// An operation of this pass will add to the gradient of `index` and call Done once it has.
  void AddUse(int64_t index) {
    if (trainable(index)) ++state_[index].open_uses;
  }

  struct Target {
    TensorView gradient;
    bool accumulate = false;  ///< += when true, = when false.
  };
  /// The target of operations that can write and add. Of trainable parameters.
  Result<Target> Write(int64_t index);

  /// The target of operations that only add: zero when nothing was written in this step. None for a
  /// frozen parameter.
  Result<TensorView> Add(Context& context, int64_t index);

  /// The operation that called AddUse has written its share, if the parameter has a gradient.
  Status Done(int64_t index);

  /// An operation that called AddUse has nothing to add: it was skipped in this pass.
  Status Skip(Context& context, int64_t index);

  /// The backward pass is over: trainable parameters it did not use get a zero gradient if they
  /// have none, and their hook.
  Status FinishPass(Context& context);

 private:
  struct State {
    bool trainable = false;
    int32_t open_uses = 0;
    bool written = false;   ///< In this step.
    bool reported = false;  ///< In this pass.
    bool placed = false;    ///< In this pass.
    bool taken = false;     ///< In this step, by TakeWritten.
  };
  std::vector<TensorView> gradients_;
  std::vector<State> state_;
  Placer place_;  ///< Or none.
  bool carries_sums_ = false;
  bool by_pass_ = false;
  ReadyHook on_ready_;
};

}  // namespace weft::engine
