#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "common/spec/plan.h"
#include "kernels/cuda/graph.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/step_clock.h"

namespace weft::engine {

/// Training steps on a device as graphs: the work of a step is recorded when it comes for the
/// second time and launched whole from then on. A graph uses the memory that its tensors had while
/// it was recorded; it is recorded anew where somebody else holds some of that now, and where
/// scratch memory has moved. Not thread-safe.
class StepGraphs {
 public:
  /// All that decides what work a step enqueues, but for Context::numbers.
  using Key = std::vector<int64_t>;

  /// Enqueues the work of a step, as `enqueue` does, which is called when there is no graph of it.
  /// Where it cannot be recorded the log says why, once, and no further step is.
  Status Run(Context& context, StepClock& clock, const Key& key,
             const std::function<Status()>& enqueue);

  /// Forgets all graphs: what the work depends on has changed.
  void Clear() { steps_.clear(); }

  /// Steps that were launched as a graph.
  int64_t launched() const { return launched_; }

 private:
  struct Step {
    Key key;
    kernels::cuda::Graph graph;  ///< None before the second time.
    std::vector<StepClock::Point> points;
    std::vector<MemoryPiece> memory;
    const void* scratch = nullptr;
    MemoryBreakdown peaks;
  };

  static bool Fits(const Context& context, const Step& step);
  static Status Record(Context& context, StepClock& clock, const std::function<Status()>& enqueue,
                       Step& step);

  std::list<Step> steps_;  ///< The latest first.
  bool refused_ = false;
  int64_t launched_ = 0;
};

}  // namespace weft::engine
