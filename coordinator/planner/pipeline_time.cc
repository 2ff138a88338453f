#include "coordinator/planner/pipeline_time.h"

#include <algorithm>
#include <map>
#include <utility>

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

// Of a step, whatever passes it has.
double OnceSeconds(const RateModel& rates) {
  return rates.device() != nullptr ? rates.device()->stack().step_seconds
                                   : rates.calibration().step_seconds;
}

}  // namespace

std::vector<StageForecast> PredictStages(const StepInputs& inputs,
                                         const PipelineStageInputs& pipeline,
                                         const RateModel& rates) {
  const double once = OnceSeconds(rates);
  const auto last = std::ssize(pipeline.cut) - 1;
  std::vector<StageForecast> stages;
  // Between the first and the last, those with as many blocks are the same: blocks, recomputed.
  std::map<std::pair<int64_t, int64_t>, StageForecast> known;
  int64_t first = 0;
  for (int64_t stage = 0; stage <= last; ++stage) {
    const int64_t blocks = pipeline.cut[static_cast<size_t>(stage)];
    StepInputs own = inputs;
    own.recomputed_blocks = std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks);
    first += blocks;
    const bool inner = stage > 0 && stage < last;
    const auto same = known.find({blocks, own.recomputed_blocks});
    if (inner && same != known.end()) {
      stages.push_back(same->second);
      continue;
    }
    own.shape = ShapeOfStage(inputs.shape, pipeline.cut, stage);
    own.accumulation_steps = 1;
    const PassCost pass =
        CostOfPass(own.shape, pipeline.micro_batch, pipeline.sequence_length, *own.precision,
                   pipeline.fp8, pipeline.dropout, rates, own.threads);
    StageForecast made;
    made.time = PredictStep(own, pass, rates);
    // What ranks that share matrices send is a part of each pass, and not of the step alone.
    const double tensor = TensorSeconds(own, rates);
    made.time.exposed_communication_seconds -= tensor;
    made.time.overhead_seconds -= once;
    // A forward pass is a third of the work; what is recomputed comes in the backward pass.
    const double recomputing = made.time.recompute_seconds;
    const double plain = ComputeSeconds(made.time) - recomputing;
    made.cost = {plain / 3 + tensor / 2, plain / 3 + recomputing + tensor / 2, plain / 3, 0};
    if (inner) known[{blocks, own.recomputed_blocks}] = made;
    stages.push_back(made);
  }
  return stages;
}

double LeastPipelineSeconds(const std::vector<StageForecast>& stages, int64_t ranks, int64_t passes,
                            bool split_backward) {
  double before = 0, least = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    double own = 0;
    for (auto stage = static_cast<size_t>(rank); stage < stages.size();
         stage += static_cast<size_t>(ranks)) {
      const StageCost& cost = stages[stage].cost;
      own += cost.forward + cost.backward_input + cost.backward_weight;
    }
    least = std::max(least, before + static_cast<double>(passes) * own);
    const StageCost& cost = stages[static_cast<size_t>(rank)].cost;
    before += cost.forward;
    if (!split_backward) before += cost.backward_input + cost.backward_weight;
  }
  return least;
}

PipelineForecast PredictPipeline(const StepInputs& inputs, const PipelineTimeInputs& pipeline,
                                 const RateModel& rates) {
  const PipelineSchedule& schedule = pipeline.schedule;
  PipelineCosts costs;
  std::vector<TimeBreakdown> ranks(static_cast<size_t>(schedule.ranks));
  for (const StageForecast& stage : PredictStages(inputs, pipeline.stages, rates)) {
    const size_t rank = costs.stages.size() % ranks.size();
    Add(stage.time, static_cast<double>(inputs.accumulation_steps), ranks[rank]);
    costs.stages.push_back(stage.cost);
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
  slowest.overhead_seconds += OnceSeconds(rates);
  return {slowest, *std::move(timeline)};
}

}  // namespace weft::planner
