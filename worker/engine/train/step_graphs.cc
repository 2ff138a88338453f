#include "worker/engine/train/step_graphs.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kernels/cuda/device.h"

namespace weft::engine {
namespace {

// Batches lie in one of two places and every so many steps measure more, by each number of
// micro-batches; where sequences differ from step to step, keys hardly ever come again.
constexpr size_t kMostSteps = 16;

}  // namespace

bool StepGraphs::Fits(const Context& context, const Step& step) {
  return step.graph && step.scratch == context.stream.cuda->scratch() &&
         context.allocator->AreFree(step.memory);
}

Status StepGraphs::Record(Context& context, StepClock& clock,
                          const std::function<Status()>& enqueue, Step& step) {
  step.graph = {};
  const MemoryBreakdown before = context.allocator->TakeRecentPeaks();
  context.allocator->StartNoting();
  clock.StartRecording();
  const Status begun = kernels::cuda::Graph::Begin(context.stream);
  const Status enqueued = begun.ok() ? enqueue() : begun;
  auto graph = begun.ok() ? kernels::cuda::Graph::End(context.stream) : begun;
  step.points = clock.TakeRecorded();
  step.memory = context.allocator->TakeNoted();
  step.peaks = context.allocator->TakeRecentPeaks();
  context.allocator->RaisePeaks(before);
  WEFT_RETURN_IF_ERROR(enqueued);
  WEFT_RETURN_IF_ERROR(graph.status());
  if (!context.allocator->AreFree(step.memory)) {
    return InternalError("memory that was taken in the step is still held after it");
  }
  step.scratch = context.stream.cuda->scratch();
  step.graph = *std::move(graph);
  return OkStatus();
}

Status StepGraphs::Run(Context& context, StepClock& clock, const Key& key,
                       const std::function<Status()>& enqueue) {
  if (refused_) return enqueue();
  const auto known =
      std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.key == key; });
  if (known == steps_.end()) {
    if (steps_.size() == kMostSteps) steps_.pop_back();
    steps_.emplace_front().key = key;
    return enqueue();
  }
  steps_.splice(steps_.begin(), steps_, known);
  Step& step = steps_.front();
  if (!Fits(context, step)) {
    if (const Status recorded = Record(context, clock, enqueue, step); !recorded.ok()) {
      WEFT_LOG_WARNING << "training steps are enqueued one operation after the other: they cannot "
                          "be recorded as a graph: "
                       << recorded.message();
      refused_ = true;
      steps_.clear();
      return enqueue();
    }
  }
  WEFT_RETURN_IF_ERROR(step.graph.Launch(context.stream));
  clock.Repeat(step.points);
  context.allocator->RaisePeaks(step.peaks);
  ++launched_;
  return OkStatus();
}

}  // namespace weft::engine
