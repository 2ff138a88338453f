#pragma once

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "common/pipeline/simulate.h"
#include "worker/engine/tensor/profiler.h"

namespace weft::engine {

/// What the ranks of a pipeline did in one step, by their traces of it, in seconds since the first
/// of them began: comparable with SimulatePipeline. Ranks are threads of one process.
inline PipelineTimeline ExecutedPipeline(const PipelineSchedule& schedule,
                                         const std::vector<Profiler::Trace>& traces) {
  std::vector<std::vector<Profiler::Event>> passes;
  Profiler::Time begin = Profiler::Time::max();
  for (const Profiler::Trace& trace : traces) {
    passes.emplace_back();
    for (const Profiler::Event& event : trace.events) {
      if (event.track != Profiler::Track::kPhases) continue;
      if (event.name != "forward" && event.name != "backward") continue;
      begin = std::min(begin, event.begin);
      passes.back().push_back(event);
    }
  }
  PipelineTimeline timeline;
  for (size_t rank = 0; rank < passes.size(); ++rank) {
    const std::vector<PipelineStep>& steps = schedule.steps[rank];
    WEFT_CHECK(passes[rank].size() == steps.size(), "a pass for each step of the schedule");
    PipelineTimeline::Rank& own = timeline.ranks.emplace_back();
    for (size_t i = 0; i < steps.size(); ++i) {
      const Profiler::Event& pass = passes[rank][i];
      WEFT_CHECK((pass.name == "forward") == (steps[i].op == PipelineOp::kForward),
                 "passes are in the order of the schedule");
      own.starts.push_back(ToSeconds(pass.begin - begin));
      own.ends.push_back(own.starts.back() + pass.seconds);
      own.busy += pass.seconds;
    }
    timeline.end = std::max(timeline.end, own.ends.back());
  }
  return timeline;
}

/// What each stage took for a micro-batch in these steps: the median, without the few passes that
/// something else came between.
inline PipelineCosts ExecutedCosts(const PipelineSchedule& schedule,
                                   const std::vector<PipelineTimeline>& steps) {
  PipelineCosts costs;
  costs.stages.resize(static_cast<size_t>(schedule.stages()));
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    for (int64_t chunk = 0; chunk < schedule.chunks; ++chunk) {
      const auto median_of = [&](PipelineOp op) {
        std::vector<double> seconds;
        const std::vector<PipelineStep>& own = schedule.steps[static_cast<size_t>(rank)];
        for (size_t i = 0; i < own.size(); ++i) {
          if (own[i].op != op || own[i].chunk != chunk) continue;
          for (const PipelineTimeline& step : steps) {
            const PipelineTimeline::Rank& done = step.ranks[static_cast<size_t>(rank)];
            seconds.push_back(done.ends[i] - done.starts[i]);
          }
        }
        const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
        std::nth_element(seconds.begin(), middle, seconds.end());
        return seconds.empty() ? 0.0 : *middle;
      };
      StageCost& cost = costs.stages[static_cast<size_t>(schedule.StageOf(rank, chunk))];
      cost.forward = median_of(PipelineOp::kForward);
      if (schedule.split_backward) {
        cost.backward_input = median_of(PipelineOp::kBackwardInput);
        cost.backward_weight = median_of(PipelineOp::kBackwardWeight);
      } else {
        cost.backward_input = median_of(PipelineOp::kBackward);
      }
    }
  }
  return costs;
}

}  // namespace weft::engine
