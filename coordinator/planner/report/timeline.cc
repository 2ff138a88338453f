#include "coordinator/planner/report/timeline.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/model/memory_model.h"
#include "common/model/precision.h"
#include "common/pipeline/named_schedule.h"
#include "common/pipeline/simulate.h"
#include "common/spec/planned_job.h"
#include "common/spec/shard_ranks.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/rank_links.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/search.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"
#include "coordinator/planner/worker_order.h"

namespace weft::planner {
namespace {

/// What of a rank's step the passes of a pipeline depend on.
StepInputs InputsOf(const JobSpec& job, const Plan& plan, int64_t ranks_on_worker) {
  StepInputs inputs{ShapeOfRank(job)};
  inputs.accumulation_steps = plan.accumulation_steps;
  inputs.recomputed_blocks =
      std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), "recompute");
  inputs.recomputed_attentions =
      std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), "attention");
  if (auto schedule = ParseRemat(plan.recompute_schedule, job.model.layers); schedule.ok()) {
    inputs.schedule = *std::move(schedule);
  }
  inputs.threads = plan.threads_per_rank;
  inputs.ranks = plan.mesh.data * plan.mesh.expert * plan.mesh.context;
  inputs.ranks_on_worker = ranks_on_worker;
  inputs.bucket_bytes = plan.bucket_bytes;
  inputs.precision = &PrecisionOf(plan.precision);
  inputs.zero_stage = plan.zero_stage;
  inputs.tokens = plan.micro_batch * SequenceLength(job) / plan.mesh.context;
  inputs.context = {plan.mesh.context, plan.context_method == "ulysses"};
  inputs.shard_ranks = ShardRanks(plan);
  inputs.pipeline = plan.mesh.pipeline;
  inputs.local_steps = job.train.local_steps;
  return inputs;
}

/// Simulated, each rank of the pipeline on the slowest machine that it has.
PipelineTimeline PlayPipeline(const JobSpec& planned, const ClusterProfile& cluster,
                              const Plan& plan, const PipelineSchedule& schedule) {
  const std::vector<UsedMachine> machines = MachinesOf(plan, cluster);
  WEFT_CHECK(!machines.empty(), "the plan's machines are not in the cluster");
  StepInputs inputs = InputsOf(planned, plan, machines.front().ranks);
  inputs.spans_racks = std::any_of(machines.begin(), machines.end(), [&](const auto& machine) {
    return machine.worker->rack != machines.front().worker->rack;
  });
  if (const std::shared_ptr<const MachineLinks> links = MachineLinksOf(cluster)) {
    std::vector<RankLinks::Machine> linked;
    for (const UsedMachine& machine : machines) {
      linked.push_back({links->ZoneOf(*machine.worker), machine.ranks});
    }
    inputs.links = std::make_shared<const RankLinks>(links, linked);
  }
  const StageShapes shapes(inputs.shape);
  struct Kind {
    std::unique_ptr<const StepRates> rates;
    StagePasses passes;

    Kind(const JobSpec& job, const Plan& own, const WorkerProfile& worker,
         const StageShapes& stages)
        : rates(MakeStepRates(worker, PrecisionOf(own.precision).products, own.device != "cpu")),
          passes(stages, own.micro_batch, SequenceLength(job), PrecisionOf(own.precision),
                 FormatBlocksOf(PrecisionOf(own.precision), job.train), DropoutOf(job.model),
                 *rates, own.threads_per_rank, own.mesh.context,
                 TechniqueProductsOf(job.train, UnitsOf(own, worker)), job.train) {}
  };
  std::map<std::string, std::unique_ptr<const Kind>> kinds;
  std::vector<std::vector<PipelinePlace>> places(static_cast<size_t>(plan.mesh.pipeline));
  const int64_t replicas = RankCount(plan.mesh) / plan.mesh.pipeline;
  int64_t first = 0;
  for (const UsedMachine& machine : machines) {
    WorkerProfile kind = *machine.worker;
    kind.worker_id.clear();
    kind.host.clear();
    std::unique_ptr<const Kind>& known = kinds[ToJson(kind).dump()];
    if (known == nullptr) {
      known = std::make_unique<const Kind>(planned, plan, *machine.worker, shapes);
    }
    for (int64_t rank = first / replicas; rank <= (first + machine.ranks - 1) / replicas; ++rank) {
      places[static_cast<size_t>(rank)].push_back({&known->passes, machine.ranks});
    }
    first += machine.ranks;
  }
  const PipelineForecast forecast = PredictPipeline(
      inputs, {.cut = plan.stage_blocks, .places = places, .within_worker = machines.size() == 1});
  Result<PipelineTimeline> timeline = SimulatePipeline(schedule, forecast.costs);
  WEFT_CHECK(timeline.ok(), timeline.status().message());
  return *std::move(timeline);
}

/// The passes of one rank: a third of the plain work forward, and what is recomputed backward.
PipelineTimeline PlayRank(const Plan& plan, const PipelineSchedule& schedule) {
  const TimeBreakdown& time = plan.prediction.time;
  const auto passes = static_cast<double>(plan.accumulation_steps);
  const double plain =
      (time.gemm_seconds + time.memory_bound_seconds + time.overhead_seconds) / passes;
  PipelineCosts costs;
  costs.stages = {{plain / 3, plain * 2 / 3 + time.recompute_seconds / passes, 0, 0}};
  Result<PipelineTimeline> timeline = SimulatePipeline(schedule, costs);
  WEFT_CHECK(timeline.ok(), timeline.status().message());
  return *std::move(timeline);
}

}  // namespace

Timeline TimelineOf(const JobSpec& job, const ClusterProfile& cluster, const Plan& plan) {
  const bool piped = plan.mesh.pipeline > 1;
  const Result<PipelineSchedule> schedule =
      piped ? NamedSchedule(plan.pipeline_schedule, plan.mesh.pipeline, plan.pipeline_chunks,
                            plan.accumulation_steps)
            : OneForwardOneBackwardSchedule(1, plan.accumulation_steps);
  WEFT_CHECK(schedule.ok(), schedule.status().message());
  const PipelineTimeline played =
      piped ? PlayPipeline(JobAsPlanned(job, plan), cluster, plan, *schedule)
            : PlayRank(plan, *schedule);
  Timeline timeline;
  if (piped) timeline.schedule = plan.pipeline_schedule;
  timeline.micro_batches = plan.accumulation_steps;
  timeline.passes_seconds = played.end;
  timeline.step_seconds = plan.prediction.step_seconds;
  timeline.idle_share = played.BubbleFraction();
  int64_t each = 0;  // steps of a micro-batch, over all ranks
  for (const auto& steps : schedule->steps) each += std::ssize(steps) / plan.accumulation_steps;
  timeline.micro_batches_shown =
      std::clamp<int64_t>(kTimelineSteps / each, 1, plan.accumulation_steps);
  for (int64_t rank = 0; rank < schedule->ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    TimelineRank& listed = timeline.ranks.emplace_back();
    const std::vector<PipelineStep>& steps = schedule->steps[index];
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].micro_batch >= timeline.micro_batches_shown) continue;
      listed.steps.push_back({std::string(PipelineOpName(steps[i].op)),
                              schedule->StageOf(rank, steps[i].chunk), steps[i].micro_batch,
                              played.ranks[index].starts[i], played.ranks[index].ends[i]});
    }
  }
  return timeline;
}

}  // namespace weft::planner
