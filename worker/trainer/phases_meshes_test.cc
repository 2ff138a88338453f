// Phases on several ranks: each grows its part from the parts of the ranks before.
#include <gtest/gtest.h>

#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

PlanChange Zero(int64_t stage) {
  return [stage](Plan& plan) {
    plan.micro_batch = 2;
    plan.mesh.data = 2;
    plan.zero_stage = stage;
  };
}

TEST_F(PhasesTest, RanksThatShareParametersGrowTheirParts) {
  JobSpec job = Job({Phase(4), Phase(3, "decoalesce")});
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  job.phases[1].growth.alpha = 1;
  CompareWithTwoRanks(job, Zero(3));
}

TEST_F(PhasesTest, RanksThatShareStateOrMatricesGrowTheirPartsOfThem) {
  for (const int64_t stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    CompareWithTwoRanks(Masked(), Zero(stage));
  }
  CompareWithTwoRanks(Masked(), [](Plan& plan) { plan.mesh.tensor = 2; });
  CompareWithTwoRanks(Masked(), [](Plan& plan) {
    plan.mesh.pipeline = 2;
    plan.stage_blocks = {1, 1};
    plan.micro_batch = 2;
    plan.accumulation_steps = 2;
  });
}

TEST_F(PhasesTest, RanksLearnAGrowthTogether) {
  JobSpec job = Job({Phase(8), Phase(3, "ligo")});
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  job.phases[1].growth.fit_steps = 6;
  ASSERT_TRUE(Run("one", job).ok());
  RunLastOnTwoRanks("one", job, "shared", Zero(0));
  const RunSummary shared = Summary("shared"), one = Summary("one");
  EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-4);
  EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
  EXPECT_EQ(shared.training_flops, one.training_flops);
}

TEST_F(PhasesTest, RanksOfAnyMeshGrowTheirPartsFromThoseOfAnother) {
  // From half the width and one block, with and without the optimizer's state; with a head for each
  // tensor-parallel rank.
  for (const char* method : {"fpi", "decoalesce"}) {
    JobSpec job = Job({Phase(4), Phase(3, method)});
    job.phases[0].layers = 1;
    job.phases[0].width = 16;
    job.phases[1].growth.alpha = 1;
    job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    for (const Spread& spread : kSpreads) {
      SCOPED_TRACE(std::string(method) + " on " + spread.name);
      AttemptSpec whole;
      whole.job_id = std::string(spread.name) + "-" + method;
      whole.epoch = 1;
      whole.host = "127.0.0.1";
      whole.run_dir = Folder(whole.job_id);
      whole.cache_dir = root_ + "/cache";
      whole.job = job;
      // The small model has one head and block: its ranks shard the optimizer's state alone.
      RunRanks(whole, 0, kSpreads[1]);
      RunRanks(whole, 1, spread);
      const RunSummary shared = Summary(whole.job_id), expected = Summary(one);
      EXPECT_NEAR(*shared.start_validation_loss_nats, *expected.start_validation_loss_nats, 1e-4);
      EXPECT_NEAR(*shared.validation_loss_nats, *expected.validation_loss_nats, 1e-3);
      ASSERT_EQ(shared.phases.size(), 2u);
      EXPECT_EQ(shared.phases[0].steps, 4);
      EXPECT_EQ(Manifest(whole.job_id).updates, 7) << "the optimizer's state was grown";
    }
  }
}

}  // namespace
}  // namespace weft::trainer
