#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "common/spec/plan.h"
#include "kernels/cuda/graph.h"
#include "worker/engine/comm/collective_recorder.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/step_clock.h"

namespace weft::engine {

/// Training steps on a device as graphs: the work of a step is recorded when it comes for the
/// second time and launched whole from then on. A graph uses the memory that its tensors had while
/// it was recorded; it is recorded anew where another owner holds some of that now, and where
/// scratch memory has moved. Where the host has a say in the middle of a step it is several parts,
/// a graph each. Not thread-safe.
///
/// Ranks whose graphs have collectives do each step in the same mode, the least that all of them
/// offer, and launch graphs that they have recorded together.
class StepGraphs {
 public:
  /// All that decides what work a step enqueues, except Context::numbers.
  using Key = std::vector<int64_t>;

  /// How a step is done; each can be done as those before it, too.
  enum class Mode { kEnqueue, kRecord, kLaunch };

  struct Vote {
    Mode mode = Mode::kEnqueue;
    int64_t recording = 0;  ///< Which one launching it takes the graphs of, by all ranks' count.
  };

  /// Whether all ranks say so; each asks.
  using Agree = std::function<Result<bool>(bool)>;

  /// Makes those of one rank alone.
  StepGraphs() = default;
  /// `groups`: whose operations the steps have.
  StepGraphs(std::vector<CollectiveRecorder*> groups, Agree agree)
      : groups_(std::move(groups)), agree_(std::move(agree)) {}

  /// The step that comes next, of `parts` parts: how it can be done here.
  Vote Next(const Context& context, Key key, size_t parts);

  /// Does a part of that step, not by kEnqueue: enqueues it as `enqueue` does, which is called
  /// where it is recorded. Where that fails the log says why, it is enqueued, and so is everything
  /// from then on.
  Status Run(Context& context, StepClock& clock, Mode mode, size_t part,
             const std::function<Status()>& enqueue);

  /// Forgets all graphs: what the work depends on has changed.
  void Clear() { steps_.clear(); }

  /// Steps that were launched as graphs.
  int64_t launched() const { return launched_; }

 private:
  struct Part {
    std::vector<std::shared_ptr<CollectiveRecorder::Recorded>> collectives;  ///< By group.
    kernels::cuda::Graph graph;
    std::vector<StepClock::Point> points;
    std::vector<MemoryPiece> memory;
    const void* scratch = nullptr;
    MemoryBreakdown peaks;
  };
  struct Step {
    Key key;
    std::vector<Part> parts;  ///< Without graphs before the second time.
    int64_t recording = 0;    ///< Of the latest.
  };

  static bool Fits(const Context& context, const Part& part);
  Status Record(Context& context, StepClock& clock, const std::function<Status()>& enqueue,
                Part& part) const;
  Status Launch(Context& context, StepClock& clock, const Part& part) const;

  std::vector<CollectiveRecorder*> groups_;
  Agree agree_;
  std::list<Step> steps_;  ///< The latest first.
  bool refused_ = false;
  int64_t recordings_ = 0;
  int64_t launched_ = 0;
};

}  // namespace weft::engine
