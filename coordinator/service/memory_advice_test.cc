#include "coordinator/service/memory_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/planner.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

JobSpec Gpt2Job() {
  JobSpec job;
  job.name = "gpt2";
  job.data.train = {"a.txt"};
  job.model.layers = 12;
  job.model.width = 768;
  job.model.heads = 12;
  job.model.vocab_size = 50257;
  job.model.context = 1024;
  job.train.global_batch = 64;
  job.train.precision = "bf16";
  job.resources.ranks = 1;
  return job;
}

ClusterProfile Gpus(int count, int64_t memory) {
  WorkerProfile worker;
  worker.worker_id = "g";
  worker.device = "cuda";
  worker.cores = 32;
  worker.memory_bytes = worker.memory_limit_bytes = 64 * kGiB;
  for (int index = 0; index < count; ++index) {
    DeviceSpec device;
    device.index = index;
    device.compute_capability = "9.0";
    device.memory_bytes = device.memory_limit_bytes = memory;
    worker.devices.push_back(device);
  }
  return {{worker}};
}

Result<PlanReport> PlanNow(const JobSpec& job, const ClusterProfile& cluster) {
  return planner::PlanJob(job, cluster);
}

Plan PlanOf(const JobSpec& job, const ClusterProfile& cluster) {
  Result<PlanReport> report = planner::PlanJob(job, cluster);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report->candidates.front().plan : Plan();
}

TEST(MemoryAdvice, SaysWhatTheDeviceOffersAndWhichSingleChangesWouldFit) {
  const ClusterProfile cluster = Gpus(4, 70 * kGiB);
  JobSpec job = Gpt2Job();
  job.resources.micro_batch = 64;
  job.resources.recompute = "none";
  const Plan plan = PlanOf(job, cluster);
  const std::string text = MemoryAdvice(job, plan, cluster, PlanNow);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("the plan expected "), HasSubstr("(activations "), HasSubstr("gradients "),
            HasSubstr("optimizer "), HasSubstr("GPU 0 of g offers 70.0 GiB"),
            HasSubstr("one change to that plan would do: "),
            HasSubstr(" of 12 blocks recomputed ("), HasSubstr("micro-batch 32 x 2 ("),
            HasSubstr("2 ranks, micro-batch 32 (")));
  // The job's own wishes rule out what the next attempt could take.
  EXPECT_THAT(text, HasSubstr(": no plan fits"));
  EXPECT_THAT(text, Not(HasSubstr("train.precision: bf16 ")));

  // Mostly state: only fewer bytes a parameter help.
  job = Gpt2Job();
  job.resources.micro_batch = 1;
  job.train.global_batch = 1;
  job.train.precision = "fp32";
  const std::string state = MemoryAdvice(job, PlanOf(job, cluster), cluster, PlanNow);
  EXPECT_THAT(state, AllOf(Not(HasSubstr("micro-batch 1 x")), Not(HasSubstr("2 ranks"))));
}

TEST(MemoryAdvice, NamesTheLimitThatTheJobSetItself) {
  const ClusterProfile cluster = Gpus(1, 70 * kGiB);
  JobSpec job = Gpt2Job();
  job.resources.memory_per_rank_bytes = 4 * kGiB;
  EXPECT_THAT(MemoryAdvice(job, PlanOf(job, cluster), cluster, PlanNow),
              AllOf(HasSubstr("resources.memory_per_rank_bytes allows 4.0 GiB"),
                    HasSubstr("this would fit: 1 ranks")));
}

}  // namespace
}  // namespace weft::coordinator
