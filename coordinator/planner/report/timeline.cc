#include "coordinator/planner/report/timeline.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/model/precision.h"
#include "common/pipeline/named_schedule.h"
#include "common/pipeline/simulate.h"
#include "common/spec/shard_ranks.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/search.h"

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
  inputs.threads = plan.threads_per_rank;
  inputs.ranks = plan.mesh.data * plan.mesh.context;
  inputs.ranks_on_worker = ranks_on_worker;
  inputs.bucket_bytes = plan.bucket_bytes;
  inputs.precision = &PrecisionOf(plan.precision);
  inputs.zero_stage = plan.zero_stage;
  inputs.tokens = plan.micro_batch * SequenceLength(job) / plan.mesh.context;
  inputs.context = {plan.mesh.context, plan.context_method == "ulysses"};
  inputs.sharers = ShardRanks(plan);
  inputs.local_steps = job.train.local_steps;
  return inputs;
}

/// Played through on each kind of machine in use; the one on which it takes longest.
PipelineTimeline PlayPipeline(const JobSpec& planned, const ClusterProfile& cluster,
                              const Plan& plan, const PipelineSchedule& schedule) {
  std::optional<PipelineTimeline> slowest;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const UsedMachine& machine : MachinesOf(plan, cluster)) {
    WorkerProfile kind = *machine.worker;
    kind.worker_id.clear();
    kind.host.clear();
    if (!seen.emplace(ToJson(kind).dump(), machine.ranks).second) continue;
    const RateModel rates(*machine.worker, PrecisionOf(plan.precision).products,
                          plan.device != "cpu");
    const bool within = machine.ranks == RankCount(plan.mesh);
    PipelineForecast forecast =
        PredictPipeline(InputsOf(planned, plan, machine.ranks),
                        {.stages = {.cut = plan.stage_blocks,
                                    .micro_batch = plan.micro_batch,
                                    .sequence_length = SequenceLength(planned),
                                    .fp8 = planned.train.fp8,
                                    .dropout = planned.model.dropout},
                         .schedule = schedule,
                         .within_worker = within},
                        rates);
    if (!slowest || forecast.timeline.end > slowest->end) slowest = std::move(forecast.timeline);
  }
  WEFT_CHECK(slowest.has_value(), "the plan's machines are not in the cluster");
  return *std::move(slowest);
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
