#include "coordinator/planner/calibration/timed_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "common/model/pipeline_shape.h"
#include "common/model/precision.h"
#include "common/model/remat_schedule.h"
#include "common/spec/planned_job.h"
#include "coordinator/planner/mesh_search.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/report/measure.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {
namespace {

/// That of the search which `plan` was made of.
CostedPlan CostedPlanOf(const Plan& plan, int64_t layers) {
  CostedPlan costed;
  costed.ranks = RankCount(plan.mesh);
  costed.tensor = plan.mesh.tensor;
  costed.pipeline = plan.mesh.pipeline;
  costed.context = plan.mesh.context;
  costed.experts = plan.mesh.expert;
  costed.threads = plan.threads_per_rank;
  costed.micro_batch = plan.micro_batch;
  costed.accumulation_steps = plan.accumulation_steps;
  costed.cut = plan.stage_blocks;
  if (plan.recompute_schedule.empty()) {
    costed.recomputed_blocks = BlocksWith(plan, "recompute");
    costed.attention_blocks = BlocksWith(plan, "attention");
  } else {
    costed.schedule = ParseRemat(plan.recompute_schedule, layers).value();
    costed.recomputed_blocks = ReplayedBlocks(costed.schedule);
  }
  return costed;
}

Status CheckPlan(const JobSpec& planned, const Plan& plan,
                 const std::vector<WorkerProfile>& machines) {
  const Mesh& mesh = plan.mesh;
  if (mesh.data < 1 || mesh.tensor < 1 || mesh.pipeline < 1 || mesh.context < 1 ||
      mesh.expert < 1 || plan.micro_batch < 1 || plan.accumulation_steps < 1 ||
      plan.threads_per_rank < 1) {
    return InvalidError("its plan has a size below 1");
  }
  WEFT_RETURN_IF_ERROR(ValidateJob(planned));
  WEFT_RETURN_IF_ERROR(CutModel(planned).status());
  const std::vector<int64_t>& cut = plan.stage_blocks;
  const int64_t stages = mesh.pipeline * plan.pipeline_chunks;
  if (mesh.pipeline > 1 &&
      (std::ssize(cut) != stages || std::ranges::any_of(cut, [](int64_t n) { return n < 1; }) ||
       std::reduce(cut.begin(), cut.end()) != planned.model.layers)) {
    return InvalidError("its plan does not cut its model into its stages");
  }
  if (!plan.recompute_schedule.empty()) {
    WEFT_RETURN_IF_ERROR(ParseRemat(plan.recompute_schedule, planned.model.layers).status());
  }
  if (mesh.data * mesh.expert * plan.micro_batch * plan.accumulation_steps !=
      planned.train.global_batch) {
    return InvalidError("its plan makes steps of another batch");
  }
  if (std::ssize(plan.rank_workers) != RankCount(mesh)) {
    return InvalidError("its plan does not say where its ranks ran");
  }
  for (const std::string& id : plan.rank_workers) {
    if (std::none_of(machines.begin(), machines.end(),
                     [&](const WorkerProfile& worker) { return worker.worker_id == id; })) {
      return InvalidError("nothing is known of the worker " + id + " that it ran on");
    }
  }
  return OkStatus();
}

}  // namespace

std::string MachineKind(const WorkerProfile& machine) {
  const std::string& model = machine.cpu_model;
  return (model.empty() ? "unknown processor" : model) + " (" + machine.isa + ")";
}

std::string WhyLeftOut(const TimedRun& run) {
  if (!std::isfinite(run.step_seconds) || run.step_seconds <= 0) return "no step was timed";
  if (run.timed_steps < kLeastTimedSteps) {
    return "only " + std::to_string(run.timed_steps) + " of at least " +
           std::to_string(kLeastTimedSteps) + " steps were timed";
  }
  if (run.plan.device != "cpu") return "it ran on GPUs, which nothing is fitted to";
  if (std::string why = WhyTeachesNothing(run.job); !why.empty()) return why;
  std::set<std::string> kinds;
  for (const WorkerProfile& machine : run.machines) kinds.insert(MachineKind(machine));
  if (kinds.size() > 1) return "it ran on machines of several kinds";
  const Result<RunForecast> forecast = RunForecast::Of(run);
  return forecast.ok() ? "" : forecast.status().message();
}

Result<RunForecast> RunForecast::Of(const TimedRun& run) {
  JobSpec planned = JobAsPlanned(run.job, run.plan);
  WEFT_RETURN_IF_ERROR(CheckPlan(planned, run.plan, run.machines));
  std::vector<int64_t> cut = CutModel(planned).value();
  RunForecast forecast(std::move(planned), run, std::move(cut));
  const double seconds = StepSeconds(forecast.Step({}));
  if (!std::isfinite(seconds) || seconds <= 0) {
    return InvalidError("no time is predicted for its plan");
  }
  return forecast;
}

TimeBreakdown RunForecast::Step(const TimeCalibration& calibration) const {
  ClusterProfile cluster = cluster_;
  for (WorkerProfile& worker : cluster.workers) worker.calibration = calibration;
  const WorkerGroups groups(cluster, PrecisionOf(planned_.train.precision), false);
  std::map<std::string, int64_t> ranks_on;
  for (const std::string& id : plan_.rank_workers) ++ranks_on[id];
  std::vector<std::pair<size_t, int64_t>> placements;
  CostedPlan costed = CostedPlanOf(plan_, planned_.model.layers);
  for (size_t w = 0; w < groups.workers().size(); ++w) {
    const auto found = ranks_on.find(groups.workers()[w]->worker_id);
    if (found == ranks_on.end()) continue;
    placements.emplace_back(groups.kinds()[w], found->second);
    costed.ranks_per_worker = std::max(costed.ranks_per_worker, found->second);
  }
  const RankShare share(planned_, parameters_, groups, {costed.threads}, {costed.micro_batch});
  ScheduleCache schedules;
  MeshSearch search(planned_, groups, share, schedules, cut_);
  return search.Time(placements, costed) ? costed.time : TimeBreakdown{};
}

MeasuredShape RunForecast::Block() const {
  return BlockOfPass(parameters_.shape, plan_.micro_batch, SequenceLength(planned_),
                     PrecisionOf(planned_.train.precision).products, plan_.mesh.context);
}

}  // namespace weft::planner
