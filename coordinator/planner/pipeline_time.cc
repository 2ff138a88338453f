#include "coordinator/planner/pipeline_time.h"

#include <algorithm>

#include "common/check.h"

namespace weft::planner {
namespace {

double ComputeSeconds(const TimeBreakdown& time) {
  return time.gemm_seconds + time.memory_bound_seconds + time.recompute_seconds +
         time.overhead_seconds;
}

void Add(const TimeBreakdown& part, double times, TimeBreakdown& sum) {
  sum.gemm_seconds += times * part.gemm_seconds;
  sum.memory_bound_seconds += times * part.memory_bound_seconds;
  sum.recompute_seconds += times * part.recompute_seconds;
  sum.overhead_seconds += times * part.overhead_seconds;
  sum.optimizer_seconds += part.optimizer_seconds;
  sum.exposed_communication_seconds += part.exposed_communication_seconds;
}

}  // namespace

PipelineForecast PredictPipeline(const StepInputs& inputs, const PipelineTimeInputs& pipeline,
                                 const RateModel& rates) {
  const PipelineSchedule& schedule = pipeline.schedule;
  const auto passes = static_cast<double>(inputs.accumulation_steps);
  // Of a step, whatever passes it has.
  const double once = rates.device() != nullptr ? rates.device()->stack().step_seconds
                                                : rates.calibration().step_seconds;
  PipelineCosts costs;
  std::vector<TimeBreakdown> ranks(static_cast<size_t>(schedule.ranks));
  int64_t first = 0;
  for (int64_t stage = 0; stage < schedule.stages(); ++stage) {
    const int64_t blocks = pipeline.cut[static_cast<size_t>(stage)];
    StepInputs own = inputs;
    own.shape = ShapeOfStage(inputs.shape, pipeline.cut, stage);
    own.accumulation_steps = 1;
    own.recomputed_blocks = std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks);
    first += blocks;
    const PassCost pass =
        CostOfPass(own.shape, pipeline.micro_batch, pipeline.sequence_length, *own.precision,
                   pipeline.fp8, pipeline.dropout, rates, own.threads);
    TimeBreakdown time = PredictStep(own, pass, rates);
    // What ranks that share matrices send is a part of each pass, and not of the step alone.
    const double tensor = TensorSeconds(own, rates);
    time.exposed_communication_seconds -= tensor;
    time.overhead_seconds -= once;
    // A forward pass is a third of the work; what is recomputed comes in the backward pass.
    const double plain = ComputeSeconds(time) - time.recompute_seconds;
    costs.stages.push_back(
        {plain / 3 + tensor / 2, plain / 3 + time.recompute_seconds + tensor / 2, plain / 3, 0});
    Add(time, passes, ranks[static_cast<size_t>(stage % schedule.ranks)]);
  }
  const double bytes = static_cast<double>(inputs.tokens * inputs.shape.spec.width *
                                           ElementBytes(inputs.precision->activations));
  const Wire wire = WireOf(inputs, rates, pipeline.within_worker);
  costs.hop = wire.message_seconds + bytes / wire.bytes_per_second;
  Result<PipelineTimeline> timeline = SimulatePipeline(schedule, costs);
  WEFT_CHECK(timeline.ok(), timeline.status().message());
  TimeBreakdown slowest;
  for (const TimeBreakdown& rank : ranks) {
    if (ComputeSeconds(rank) > ComputeSeconds(slowest)) slowest = rank;
  }
  slowest.exposed_communication_seconds += std::max(0.0, timeline->end - ComputeSeconds(slowest));
  slowest.overhead_seconds += once;
  return {slowest, *std::move(timeline)};
}

}  // namespace weft::planner
