#include "worker/engine/train/step_graphs.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kernels/cuda/device.h"

namespace weft::engine {
namespace {

// Batches lie in one of two places and every N steps measure more, by each number of
// micro-batches; where sequences differ from step to step, keys hardly ever come again.
constexpr size_t kMostSteps = 16;

}  // namespace

bool StepGraphs::Fits(const Context& context, const Part& part) {
  return part.graph && part.scratch == context.stream.cuda->scratch() &&
         context.allocator->AreFree(part.memory);
}

Status StepGraphs::Record(Context& context, StepClock& clock,
                          const std::function<Status()>& enqueue, Part& part) const {
  part.graph = {};
  part.collectives.clear();
  const MemoryBreakdown before = context.allocator->TakeRecentPeaks();
  context.allocator->StartNoting();
  clock.StartRecording();
  for (CollectiveRecorder* group : groups_) group->StartRecording();
  const Status begun = kernels::cuda::Graph::Begin(context.stream);
  const Status enqueued = begun.ok() ? enqueue() : begun;
  auto graph = begun.ok() ? kernels::cuda::Graph::End(context.stream) : begun;
  for (CollectiveRecorder* group : groups_) part.collectives.push_back(group->TakeRecorded());
  part.points = clock.TakeRecorded();
  part.memory = context.allocator->TakeNoted();
  part.peaks = context.allocator->TakeRecentPeaks();
  context.allocator->RaisePeaks(before);
  WEFT_RETURN_IF_ERROR(enqueued);
  WEFT_RETURN_IF_ERROR(graph.status());
  if (!context.allocator->AreFree(part.memory)) {
    return InternalError("memory that was taken in the step is still held after it");
  }
  part.scratch = context.stream.cuda->scratch();
  part.graph = *std::move(graph);
  return OkStatus();
}

Status StepGraphs::Launch(Context& context, StepClock& clock, const Part& part) const {
  WEFT_RETURN_IF_ERROR(part.graph.Launch(context.stream));
  for (size_t group = 0; group < groups_.size(); ++group) {
    WEFT_RETURN_IF_ERROR(groups_[group]->Repeat(part.collectives[group]));
  }
  clock.Repeat(part.points);
  context.allocator->RaisePeaks(part.peaks);
  return OkStatus();
}

StepGraphs::Vote StepGraphs::Next(const Context& context, Key key, size_t parts) {
  if (refused_) return {};
  const auto known =
      std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.key == key; });
  if (known == steps_.end()) {
    if (steps_.size() == kMostSteps) steps_.pop_back();
    Step& step = steps_.emplace_front();
    step.key = std::move(key);
    step.parts.resize(parts);
    return {};
  }
  steps_.splice(steps_.begin(), steps_, known);
  const bool fits = std::all_of(known->parts.begin(), known->parts.end(),
                                [&](const Part& part) { return Fits(context, part); });
  return {fits ? Mode::kLaunch : Mode::kRecord, known->recording};
}

Status StepGraphs::Run(Context& context, StepClock& clock, Mode mode, size_t part,
                       const std::function<Status()>& enqueue) {
  // The part before was not recorded.
  if (refused_) return enqueue();
  std::vector<Part>& parts = steps_.front().parts;
  if (mode == Mode::kRecord) {
    if (part == 0) steps_.front().recording = ++recordings_;
    const Status recorded = Record(context, clock, enqueue, parts[part]);
    bool all = recorded.ok();
    if (agree_) {
      WEFT_ASSIGN_OR_RETURN(all, agree_(all));
    }
    if (!all) {
      WEFT_LOG_WARNING << "training steps are enqueued one operation after the other: they cannot "
                          "be recorded as a graph: "
                       << (recorded.ok() ? "another rank says why" : recorded.message());
      refused_ = true;
      steps_.clear();
      return enqueue();
    }
  }
  WEFT_RETURN_IF_ERROR(Launch(context, clock, parts[part]));
  if (part + 1 == parts.size()) ++launched_;
  return OkStatus();
}

}  // namespace weft::engine
