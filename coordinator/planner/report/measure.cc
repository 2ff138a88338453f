#include "coordinator/planner/report/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/precision.h"
#include "common/model/step_extent.h"
#include "common/spec/local_steps.h"
#include "common/spec/planned_job.h"
#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/cluster/runs_to_measure.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

// The median of this many steps is that of longer runs.
constexpr int64_t kFewestSteps = 12;
constexpr int64_t kMostSteps = 150;
constexpr double kRunSeconds = 5;

DoubtfulRun InDoubt(const JobSpec& job, const Plan& plan) {
  const JobSpec planned = JobAsPlanned(job, plan);
  const TimeBreakdown& time = plan.prediction.time;
  return {.shape = ToBlockShape(
              BlockOfPass(ShapeOfRank(planned), plan.micro_batch, SequenceLength(planned),
                          PrecisionOf(plan.precision).products, plan.mesh.context)),
          .share = (time.gemm_seconds + time.recompute_seconds) / plan.prediction.step_seconds};
}

/// What was measured on the first machine of the best plan, whose kind has most to do with it.
const TimeCalibration& KnownOf(const Plan& best, const ClusterProfile& cluster) {
  return MachinesOf(best, cluster).front().worker->calibration;
}

JobSpec ShortJob(const JobSpec& job, const Plan& plan, size_t number) {
  JobSpec own = JobAsPlanned(job, plan);
  own.name += "-measure-" + std::to_string(number);
  own.train.steps = std::clamp(static_cast<int64_t>(kRunSeconds / plan.prediction.step_seconds),
                               kFewestSteps, kMostSteps);
  own.schedule.warmup_steps = std::min(own.schedule.warmup_steps, own.train.steps);
  own.schedule.decay_steps =
      std::min(own.schedule.decay_steps, own.train.steps - own.schedule.warmup_steps);
  own.checkpoint = {.every_steps = 0, .keep_last = own.checkpoint.keep_last};
  return own;
}

std::string Off(double deviation) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * std::expm1(deviation));
  return text;
}

}  // namespace

std::string WhyTeachesNothing(const JobSpec& job) {
  if (MakesLocalSteps(job.train)) return "its steps are of different lengths: local steps";
  if (job.train.batch_warmup_steps > 0) {
    return "its steps are of different lengths: batch warm-up";
  }
  if (ExtentChanges(job)) return "its steps differ in how many layers or tokens they have";
  if (job.model.family != "vit" && job.model.vocab_size == 0 && !job.data.tokenizer.path.empty()) {
    return "its vocabulary is that of a tokenizer file, which the planner did not see; hint: "
           "model.vocab_size says it";
  }
  return "";
}

Result<MeasureAdvice> AdviseToMeasure(const JobSpec& job, const ClusterProfile& cluster,
                                      bool any_mesh, int64_t count, const JobCheck& check) {
  const auto nothing = [](const std::string& why) {
    return InvalidError("measuring this job would teach the planner nothing: " + why);
  };
  if (const std::string why = WhyTeachesNothing(job); !why.empty()) return nothing(why);
  WEFT_ASSIGN_OR_RETURN(const std::vector<Plan> plans,
                        FastestPlans(job, cluster, any_mesh, kPlansInDoubt, check));
  MeasureAdvice advice;
  if (plans.empty()) return advice;
  if (plans.front().device != "cpu") return nothing("it runs on GPUs, which nothing is fitted to");
  const TimeCalibration& known = KnownOf(plans.front(), cluster);
  std::vector<DoubtfulRun> runs;
  for (const MeasuredShape& shape : known.shapes) runs.push_back({.shape = ToBlockShape(shape)});
  // Constants without shapes speak of the machine as a whole.
  if (known.runs > 0 && runs.empty()) runs.push_back({.shape = {1, 1, 1, 1, "none"}});
  const size_t first = runs.size();
  for (const Plan& plan : plans) runs.push_back(InDoubt(job, plan));
  RunsInDoubt doubt(runs);
  for (size_t i = 0; i < first; ++i) {
    doubt.Measure(i, static_cast<double>(known.shapes.empty() ? known.runs : known.shapes[i].runs));
  }
  advice.plans = std::ssize(plans);
  advice.runs_known = known.runs;
  advice.deviation = doubt.Deviation(first);
  while (std::ssize(advice.runs) < count) {
    const std::optional<size_t> next = doubt.MostInformative(first);
    if (!next) break;
    doubt.Measure(*next);
    const Plan& plan = plans[*next - first];
    advice.runs.push_back({.plan = plan,
                           .lines = LinesOf(job, plan),
                           .deviation = doubt.Deviation(first),
                           .spec = ShortJob(job, plan, advice.runs.size() + 1)});
  }
  return advice;
}

std::string FormatMeasure(const PlanExplanation& explanation) {
  const MeasureAdvice& advice = explanation.measure;
  std::vector<std::vector<std::string>> rows = {{"", "ranks", "of them", "threads", "micro-batch",
                                                 "step", "then off by", "lines of the job"}};
  for (const RunToMeasure& run : advice.runs) {
    std::string lines;
    for (const std::string& line : run.lines) lines += (lines.empty() ? "" : "; ") + line;
    rows.push_back({std::to_string(rows.size()), std::to_string(RankCount(run.plan.mesh)),
                    MeshText(run.plan), std::to_string(run.plan.threads_per_rank),
                    std::to_string(run.plan.micro_batch),
                    HumanSeconds(run.plan.prediction.step_seconds), Off(run.deviation), lines});
  }
  return "After " + std::to_string(advice.runs_known) +
         (advice.runs_known == 1 ? " run" : " runs") + " the predictions of the " +
         std::to_string(advice.plans) + " fastest plans may be off by " + Off(advice.deviation) +
         " (one standard deviation). Measured one after the other, these tell most of all:\n" +
         AlignedRows(rows, {true, true, false, true, true, true, true, false}) +
         "Run them, then weft plan --calibrate; --jobs DIR writes them as short jobs.\n";
}

}  // namespace weft::planner
