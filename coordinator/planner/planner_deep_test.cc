// Models of very many blocks or experts, and planning that is asked to stop.
#include <gtest/gtest.h>
#include <time.h>

#include <stop_token>

#include "common/model/remat_schedule.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

JobSpec DeepJob(const std::string& recompute) {
  JobSpec job = SmallJob();
  job.model.layers = 1024;
  job.model.width = 64;
  job.model.heads = 2;
  job.resources.recompute = recompute;
  return job;
}

/// Seconds of all threads of this process, so that others on the machine do not count.
double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Planning takes a second or less. Time that grows with the cube of the blocks is minutes. Without
/// optimisation, or with sanitizers, all takes longer.
#ifdef NDEBUG
constexpr double kMostSeconds = 20;
#else
constexpr double kMostSeconds = 200;
#endif

TEST(PlanDeepModels, OptimalSchedulesAreFoundWhereMemoryBinds) {
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const Result<PlanReport> all = PlanJob(DeepJob("none"), ample);
  const Result<PlanReport> blocks = PlanJob(DeepJob("block"), ample);
  ASSERT_TRUE(all.ok() && blocks.ok());
  const auto bytes_of = [](const Result<PlanReport>& report) {
    return TotalBytes(report->candidates.front().plan.prediction.memory_per_rank);
  };
  JobSpec job = DeepJob("optimal");
  job.resources.ranks = 1;
  job.resources.micro_batch = blocks->candidates.front().plan.micro_batch;
  const int64_t limit = (bytes_of(all) + bytes_of(blocks)) / 2;
  job.resources.memory_per_rank_bytes = limit;
  const double begin = ProcessorSeconds();
  const Result<PlanReport> optimal = PlanJob(job, ample);
  EXPECT_LT(ProcessorSeconds() - begin, kMostSeconds);
  ASSERT_TRUE(optimal.ok()) << optimal.status().message();
  const Plan& plan = optimal->candidates.front().plan;
  EXPECT_LE(bytes_of(optimal), limit);
  const auto schedule = ParseRemat(plan.recompute_schedule, 1024);
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  EXPECT_EQ(PoliciesOf(*schedule), plan.block_memory_policy);
  // Between keeping all and computing each block again.
  EXPECT_GT(ReplayedBlocks(*schedule) + ReplayedAttentions(*schedule), 0);
  EXPECT_LT(ReplayedBlocks(*schedule), 1024);
}

TEST(PlanLargeMixtures, ManyExpertsTakeHardlyLongerThanFew) {
  const ClusterProfile cluster = Cluster(32, 8, 64 * kGiB);
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.model.layers = 16;
  job.model.experts_per_token = 2;
  const auto seconds_of = [&](int64_t experts) {
    job.model.experts = experts;
    const double begin = ProcessorSeconds();
    const Result<PlanReport> report = PlanAnyMesh(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return ProcessorSeconds() - begin;
  };
  // More of them have more expert-parallel degrees. Where each mesh lists all parameters it is a
  // hundred times.
  const double few = seconds_of(8);
  EXPECT_LT(seconds_of(128), 10 * few);
}

TEST(PlanDeepModels, ARequestToStopEndsPlanning) {
  const ClusterProfile cluster = Cluster(2, 2, 4 * kGiB);
  std::stop_source source;
  source.request_stop();
  const std::stop_token stop = source.get_token();
  EXPECT_EQ(PlanJob(DeepJob("optimal"), cluster, stop).status().code(), StatusCode::kAborted);
  EXPECT_EQ(PlanAnyMesh(DeepJob("auto"), cluster, 1, stop).status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace weft::planner
