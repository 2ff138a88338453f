#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/batch_loader.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/step_graphs.h"
#include "worker/engine/train/training_ranks.h"

namespace weft::engine {

/// Does the work of steps: enqueues it operation by operation or, on a device where steps repeat,
/// launches it as graphs (StepGraphs). All ranks do a step in the same mode, the least that all of
/// them offer. Not thread-safe.
class StepLauncher {
 public:
  /// What decides the work of a step.
  struct Step {
    const std::vector<TokenBatch>& batches;
    bool measures_groups = false;
    bool alone = false;  ///< No other step is as this one: it is not recorded.
    size_t parts = 1;    ///< Between which the host has a say.
  };

  /// All outlive this. `reducer`: of the ranks that do each step in the same mode, or none; its
  /// groups are those whose operations the steps have.
  StepLauncher(Context* context, StepClock* clock, const TrainingRanks* ranks,
               GradientReducer* reducer)
      : context_(context), clock_(clock), ranks_(ranks), reducer_(reducer) {}

  /// From now on steps may be graphs.
  void UseGraphs();

  /// The step that comes next: agrees with the other ranks on its mode, and replaces each of
  /// `counts` by its sum over them. Its Step::parts calls of Run follow.
  Status Agree(const Step& step, std::span<double> counts, PhaseSeconds& seconds);

  /// Whether it is enqueued, and by one call of `enqueue` for each part.
  bool enqueues() const { return mode_ == StepGraphs::Mode::kEnqueue; }

  /// Does part `part` of that step, whose work `enqueue` enqueues; it is not called where a graph
  /// has it already.
  Status Run(size_t part, const std::function<Status()>& enqueue);

  /// Forgets all graphs: what the work depends on has changed.
  void Forget();

  /// Steps that were launched as graphs.
  int64_t launched() const { return graphs_ == nullptr ? 0 : graphs_->launched(); }

 private:
  StepGraphs::Vote VoteFor(const Step& step);

  Context* context_;
  StepClock* clock_;
  const TrainingRanks* ranks_;
  GradientReducer* reducer_;
  std::unique_ptr<StepGraphs> graphs_;  ///< Or none.
  StepGraphs::Mode mode_ = StepGraphs::Mode::kEnqueue;
};

}  // namespace weft::engine
