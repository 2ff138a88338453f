// Pipelines whose ranks are on machines of several kinds.
#include "coordinator/planner/stage_cuts.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/pipeline_shape.h"
#include "coordinator/planner/mesh_search.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

/// Two stages of a rank each, one on each machine.
JobSpec TwoStages() {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 2;
  job.resources.pipeline_parallel = 2;
  job.resources.threads_per_rank = 2;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  return job;
}

WorkerProfile TimesAsFast(WorkerProfile worker, double times) {
  for (GemmRate& rate : worker.gemm) rate.flops_per_second *= times;
  worker.copy_bytes_per_second *= times;
  return worker;
}

/// The shortest step of `job`, planned as in `plan` except the cut, of all cuts in two.
double FastestOfAllCuts(const JobSpec& job, const ClusterProfile& cluster, const Plan& plan) {
  const WorkerGroups groups(cluster, PrecisionOf(job.train.precision), false);
  const RankShare share(job, groups, {plan.threads_per_rank}, {plan.micro_batch});
  ScheduleCache schedules;
  MeshSearch search(job, groups, share, schedules, CutModel(job).value());
  double fastest = std::numeric_limits<double>::infinity();
  for (int64_t blocks = 1; blocks < job.model.layers; ++blocks) {
    CostedPlan costed;
    costed.ranks = costed.pipeline = 2;
    costed.threads = plan.threads_per_rank;
    costed.micro_batch = plan.micro_batch;
    costed.accumulation_steps = plan.accumulation_steps;
    costed.cut = {blocks, job.model.layers - blocks};
    EXPECT_TRUE(search.Time({{groups.kinds()[0], 1}, {groups.kinds()[1], 1}}, costed));
    fastest = std::min(fastest, StepSeconds(costed.time));
  }
  return fastest;
}

TEST(StageCuts, GiveTheFasterMachineMore) {
  const JobSpec job = TwoStages();
  ClusterProfile cluster = Cluster(2, 2, 16 * kGiB);
  const Plan even = Best(job, cluster);
  for (const double times : {0.25, 0.5, 0.8, 2.0, 5.0}) {
    cluster.workers[1] = TimesAsFast(Worker("w101", 2, 16 * kGiB), times);
    const Plan plan = Best(job, cluster);
    ASSERT_EQ(plan.rank_workers, (std::vector<std::string>{"w100", "w101"}));
    // The cut is by FLOPs, so that it may miss the best by what ends nearly equal.
    EXPECT_LE(plan.prediction.step_seconds, 1.002 * FastestOfAllCuts(job, cluster, plan)) << times;
    if (times < 0.6) {
      EXPECT_GT(plan.stage_blocks[0], even.stage_blocks[0]) << times;
    }
    if (times > 1) {
      EXPECT_LT(plan.stage_blocks[0], even.stage_blocks[0]) << times;
    }
    EXPECT_EQ(plan.prediction.step_seconds > even.prediction.step_seconds, times < 1);
  }
}

TEST(StageCuts, OfMachinesThatDifferInNamesAloneAreThoseOfTheModel) {
  const JobSpec job = TwoStages();
  EXPECT_EQ(Best(job, Cluster(2, 2, 16 * kGiB)).stage_blocks, *CutModel(job));
}

TEST(StageCuts, GiveASmallGpuWhatItHolds) {
  JobSpec job = TwoStages();
  job.resources.device = "cuda";
  job.model.layers = 24;
  job.model.width = 2048;
  job.model.heads = 16;
  job.model.untied_classifier = true;
  const auto plan = [&](int64_t first_gib, int64_t second_gib) {
    ClusterProfile cluster;
    cluster.workers = {GpuWorker("w100", 1, first_gib * kGiB),
                       GpuWorker("w101", 1, second_gib * kGiB)};
    return PlanJob(job, cluster);
  };
  EXPECT_FALSE(plan(10, 10).ok());
  const auto wide = plan(40, 40);
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  const std::vector<int64_t> even = wide->candidates.front().plan.stage_blocks;
  const auto mixed = plan(40, 10);
  ASSERT_TRUE(mixed.ok()) << mixed.status().message();
  EXPECT_THAT(mixed->candidates.front().reason, HasSubstr("blocks, by what their machines do"));
  const std::vector<int64_t> uneven = mixed->candidates.front().plan.stage_blocks;
  EXPECT_GT(uneven[0], even[0]);
  EXPECT_EQ(uneven[0] + uneven[1], 24);
  const Plan& chosen = mixed->candidates.front().plan;
  EXPECT_GT(TotalBytes(chosen.prediction.memory_per_rank), 10 * kGiB) << "of the fullest rank";
  EXPECT_GT(chosen.prediction.step_seconds, wide->candidates.front().plan.prediction.step_seconds);
}

}  // namespace
}  // namespace weft::planner
