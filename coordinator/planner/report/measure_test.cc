// Which runs of a job are worth measuring, and that measuring them is what was asked for.
#include "coordinator/planner/report/measure.h"

#include <set>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

JobSpec Asked() {
  JobSpec job = SmallGpt2();
  job.schedule.warmup_steps = 100;
  job.schedule.decay_steps = 200;
  job.schedule.kind = "warmup_stable_decay";
  return job;
}

ClusterProfile Machines() {
  return {{CpuMachine("a", 4, 64 * kGiB), CpuMachine("b", 4, 64 * kGiB)}};
}

MeasureAdvice Advice(const JobSpec& job, const ClusterProfile& cluster, int64_t count) {
  const Result<PlanExplanation> answer =
      ExplainPlan(job, cluster, {.any_mesh = true, .measure = count});
  EXPECT_TRUE(answer.ok()) << answer.status().message();
  const Result<PlanExplanation> back = FromJson<PlanExplanation>(ToJson(*answer));
  EXPECT_TRUE(back.ok()) << back.status().message();
  return back->measure;
}

TEST(AdviseToMeasure, NamesJobsThatRunAsPlannedAndTellEverLess) {
  const MeasureAdvice advice = Advice(Asked(), Machines(), 5);
  EXPECT_EQ(advice.plans, static_cast<int64_t>(kPlansInDoubt));
  EXPECT_EQ(advice.runs_known, 0);
  ASSERT_THAT(advice.runs, SizeIs(5));
  double before = advice.deviation;
  std::set<std::string> names;
  for (const RunToMeasure& run : advice.runs) {
    EXPECT_LT(run.deviation, before);
    before = run.deviation;
    EXPECT_TRUE(names.insert(run.spec.name).second);
    EXPECT_TRUE(ValidateJob(run.spec).ok()) << ValidateJob(run.spec).message();
    EXPECT_LE(run.spec.train.steps, 150);
    const Result<PlanReport> planned = PlanJob(run.spec, Machines());
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(ToJson(planned->candidates.front().plan), ToJson(run.plan));
  }
  EXPECT_LT(before, 0.6 * advice.deviation);
}

TEST(AdviseToMeasure, AsksForOtherRunsWhereSomeAreKnown) {
  const MeasureAdvice first = Advice(Asked(), Machines(), 1);
  ClusterProfile taught = Machines();
  const Plan& plan = first.runs.front().plan;
  for (WorkerProfile& worker : taught.workers) {
    worker.calibration.runs = 9;
    worker.calibration.shapes = {{.products = "bf16",
                                  .width = 768,
                                  .tensor = plan.mesh.tensor,
                                  .tokens = plan.micro_batch * 256 / plan.mesh.context,
                                  .sequence_length = 256,
                                  .runs = 9}};
  }
  const MeasureAdvice then = Advice(Asked(), taught, 1);
  EXPECT_EQ(then.runs_known, 9);
  EXPECT_LT(then.deviation, 0.8 * first.deviation);
  ASSERT_THAT(then.runs, SizeIs(1));
  const Plan& other = then.runs.front().plan;
  EXPECT_NE(std::tuple(plan.mesh.tensor, plan.micro_batch, plan.mesh.context),
            std::tuple(other.mesh.tensor, other.micro_batch, other.mesh.context));
}

TEST(AdviseToMeasure, SaysWhyNothingWouldBeLearned) {
  const auto why = [](const JobSpec& job, const ClusterProfile& cluster) {
    return AdviseToMeasure(job, cluster, false, 1).status().message();
  };
  JobSpec job = Asked();
  job.train.local_steps = 4;
  EXPECT_THAT(why(job, Machines()), HasSubstr("local steps"));
  job = Asked();
  job.train.sampled_layers = 2 * job.model.layers;
  EXPECT_THAT(why(job, Machines()), HasSubstr("its steps differ in how many layers or tokens"));
  EXPECT_THAT(why(Asked(), {{GpuMachine("g", 1, 64 * kGiB)}}), HasSubstr("GPUs"));
}

}  // namespace
}  // namespace weft::planner
