// Whole attempts on a device that not all activations fit, as the planner plans them: some are
// kept or recomputed, some wait on the host.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/remat_schedule.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"

namespace weft::testing {
namespace {

class PlannedOffload : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_planned_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  static JobSpec Job() {
    JobSpec job = JobOf(Combination(Axes().size(), 0));
    job.model.layers = 8;
    job.model.width = 64;
    job.resources.ranks = 1;
    job.resources.micro_batch = job.train.global_batch;
    return job;
  }
  Training Run(const JobSpec& job, const std::string& name, int64_t last_step) {
    const auto training = Train(job, root_ + "/" + name, last_step);
    EXPECT_TRUE(training.ok()) << name << ": " << training.status().message();
    return training.ok() ? *training : Training();
  }

  std::string root_;
};

TEST_F(PlannedOffload, HasTheBitsOfPlainTrainingWithinTheLimitAndAcrossStops) {
  JobSpec job = Job();
  const Training plain = Run(job, "plain", 6);
  ASSERT_EQ(plain.losses.size(), 6u);
  EXPECT_EQ(plain.ranks[0].tiers.host_bytes, 0);
  const MemoryInputs inputs = MemoryInputsOf(job, PlanOf(job).value(), {});
  const int64_t activations = PredictMemory(inputs).activations_bytes;
  job.resources.recompute = "optimal";
  job.resources.offload_activations = "host";
  job.resources.device_memory_bytes = plain.ranks[0].tiers.device_bytes - activations / 2;
  job.resources.host_link_bytes_per_second = 200'000'000;
  const Training planned = Run(job, "planned", 6);
  EXPECT_EQ(planned.losses, plain.losses);
  const TierUse& tiers = planned.ranks[0].tiers;
  EXPECT_LE(tiers.device_bytes, job.resources.device_memory_bytes);
  EXPECT_GT(tiers.host_bytes, 0);
  EXPECT_LT(tiers.host_bytes, activations) << "not all of them";
  // A stopped attempt goes on, and from a checkpoint of plain training, too.
  EXPECT_EQ(Run(job, "stopped", 3).losses.size(), 3u);
  const std::vector<double> rest(plain.losses.begin() + 3, plain.losses.end());
  EXPECT_EQ(Run(job, "stopped", 6).losses, rest);
  JobSpec other = job;
  other.resources = Job().resources;
  EXPECT_EQ(Run(other, "changed", 3).losses.size(), 3u);
  EXPECT_EQ(Run(job, "changed", 6).losses, rest);
}

TEST_F(PlannedOffload, StagesHaveSchedulesOfTheirOwnWithinTheLimitAndTheBitsOfPlainOnes) {
  JobSpec job = Job();
  job.resources.ranks = job.resources.pipeline_parallel = 2;
  job.resources.micro_batch = 1;
  const Training plain = Run(job, "plain", 4);
  ASSERT_EQ(plain.ranks.size(), 2u);
  job.resources.recompute = "block";
  const Training blocks = Run(job, "blocks", 4);
  const int64_t most = plain.ranks[0].tiers.device_bytes,
                least = blocks.ranks[0].tiers.device_bytes;
  ASSERT_LT(least, most);
  job.resources.recompute = "optimal";
  job.resources.device_memory_bytes = least + (most - least) / 5;
  const Plan plan = PlanOf(job).value();
  const RematPlan schedule = ParseRemat(plan.recompute_schedule, job.model.layers).value();
  EXPECT_GT(ReplayedBlocks(*StageOf(schedule, 0, plan.stage_blocks[0])), 0);
  const Training planned = Run(job, "planned", 4);
  EXPECT_EQ(planned.losses, plain.losses);
  for (const auto& rank : planned.ranks) {
    EXPECT_LE(rank.tiers.device_bytes, job.resources.device_memory_bytes);
  }
}

TEST_F(PlannedOffload, WhatIsLeftToThePlannerRunsAsIfTheJobSaidIt) {
  JobSpec job = Job();
  const Training plain = Run(job, "plain", 5);
  job.resources.offload_optimizer = job.resources.offload_parameters =
      job.resources.offload_activations = "auto";
  // With enough room all stays.
  EXPECT_EQ(Run(job, "room", 5).ranks[0].tiers.host_bytes, 0);
  job.resources.device_memory_bytes = plain.ranks[0].tiers.device_bytes / 3;
  job.resources.host_link_bytes_per_second = 200'000'000;
  const Training open = Run(job, "open", 5);
  EXPECT_EQ(open.losses, plain.losses);
  EXPECT_LE(open.ranks[0].tiers.device_bytes, job.resources.device_memory_bytes);
  EXPECT_GT(open.ranks[0].tiers.host_bytes, 0);
  // The same tiers as a job has that says what was chosen.
  const Plan plan = PlanOf(job).value();
  JobSpec said = job;
  said.resources.offload_optimizer = plan.offload_optimizer;
  said.resources.offload_parameters = plan.offload_parameters;
  said.resources.offload_activations = plan.offload_activations;
  said.resources.device_updated_units = plan.device_updated_units;
  said.resources.resident_units = plan.resident_units;
  if (!plan.recompute_schedule.empty()) said.resources.recompute = "optimal";
  const Training explicitly = Run(said, "said", 5);
  EXPECT_EQ(explicitly.losses, open.losses);
  EXPECT_EQ(explicitly.ranks[0].tiers.device_bytes, open.ranks[0].tiers.device_bytes);
  EXPECT_EQ(explicitly.ranks[0].tiers.host_bytes, open.ranks[0].tiers.host_bytes);
}

TEST_F(PlannedOffload, StateInAFileTakesTheMemoryOfItsBuffersAlone) {
  JobSpec job = Job();
  job.model.width = 256;
  job.resources.offload_optimizer = "host";
  const auto host_bytes = [&] {
    return Run(job, job.resources.offload_optimizer, 3).ranks[0].tiers.host_bytes;
  };
  const auto predicted = [&] {
    return PlanOf(job).value().prediction.memory_per_rank.optimizer_bytes;
  };
  const int64_t on_host = host_bytes(), predicted_on_host = predicted();
  job.resources.offload_optimizer = "nvme";
  job.resources.offload_directory = root_;
  const int64_t saved = on_host - host_bytes();
  EXPECT_GT(saved, on_host / 5);
  EXPECT_NEAR(static_cast<double>(predicted_on_host - predicted()), static_cast<double>(saved),
              0.01 * static_cast<double>(saved));
}

TEST_F(PlannedOffload, APrecisionThatIsLeftOpenIsThatOfThePlan) {
  JobSpec job = Job();
  job.train.precision = "auto";
  const Training open = Run(job, "open", 4);
  job.train.precision = PlanOf(job).value().precision;
  EXPECT_NE(job.train.precision, "auto");
  EXPECT_EQ(Run(job, "said", 4).losses, open.losses);
}

}  // namespace
}  // namespace weft::testing
