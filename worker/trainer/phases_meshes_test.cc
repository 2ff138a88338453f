// Phases on several ranks: each grows its part from the parts of the ranks before.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

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

const Spread& SpreadOf(std::string_view name) {
  return *std::find_if(std::begin(kSpreads), std::end(kSpreads),
                       [&](const Spread& spread) { return spread.name == name; });
}

/// The network of `job` with parts for several ranks: four heads and blocks, and two of each where
/// a phase has half the sizes.
JobSpec OfFourBlocks(JobSpec job) {
  job.model.layers = job.model.heads = 4;
  job.model.width = 64;
  return job;
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
  for (const char* name : {"recomputed", "offloaded"}) {
    SCOPED_TRACE(name);
    CompareWithTwoRanks(Masked(), [name](Plan& plan) {
      SpreadOf(name).set(plan);
      plan.micro_batch = 2;
    });
  }
}

TEST_F(PhasesTest, RanksMixTheirPartsOfTheLargerModelIn) {
  JobSpec job = OfFourBlocks(Job({Phase(2), Phase(3, "coalesce"), Phase(2, "decoalesce")}));
  job.phases[1].layers = 2;
  job.phases[1].width = 32;
  job.phases[2].growth.alpha = 0.5;
  ASSERT_TRUE(Run("one", job).ok());
  for (const char* name : {"zero-3", "tensor", "pipeline"}) {
    SCOPED_TRACE(name);
    CompareSpread(job, "one", name, SpreadOf(name), SpreadOf(name));
  }
}

TEST_F(PhasesTest, RanksGrowTheirPartsFromThoseOfOtherBlocks) {
  for (const char* method : {"aki", "sparkling", "stack"}) {
    SCOPED_TRACE(method);
    JobSpec job = OfFourBlocks(Job({Phase(2), Phase(3, method)}));
    const bool wider = method != std::string("stack"), deeper = method != std::string("sparkling");
    if (wider) job.phases[0].width = 32;
    if (deeper) job.phases[0].layers = 2;
    // That of sparkling is asymmetric.
    if (deeper) job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    EXPECT_EQ(Manifest(one).updates, 5) << "the optimizer's state was grown";
    CompareSpread(job, one, std::string("tensor-") + method, SpreadOf("pipeline"),
                  SpreadOf("tensor"));
    CompareSpread(job, one, std::string("pipeline-") + method, SpreadOf("tensor"),
                  SpreadOf("pipeline"));
  }
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
      // The small model has one head and block: its ranks shard the optimizer's state alone.
      CompareSpread(job, one, std::string(spread.name) + "-" + method, SpreadOf("zero-1"), spread);
    }
    EXPECT_EQ(Manifest(one).updates, 7) << "the optimizer's state was grown";
  }
}

TEST_F(PhasesTest, GrowthIsFromWhatRanksOfAnyMeshHaveSaved) {
  struct Meshes {
    const char* first;
    const char* last;
  };
  constexpr Meshes kMeshes[] = {{"zero-3", "data"},
                                {"tensor", "zero-3"},
                                {"pipeline", "tensor"},
                                {"tensor-zero-1", "zero-1"}};
  for (const char* method : {"fpi", "decoalesce"}) {
    // From two heads and two blocks, so that its ranks have parts of the small model.
    JobSpec job = OfFourBlocks(Job({Phase(4), Phase(3, method)}));
    job.phases[0].layers = 2;
    job.phases[0].width = 32;
    job.phases[1].growth.alpha = 1;
    job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    EXPECT_EQ(Manifest(one).updates, 7);
    for (const Meshes& meshes : kMeshes) {
      SCOPED_TRACE(std::string(method) + " from " + meshes.first + " to " + meshes.last);
      CompareSpread(job, one, std::string(meshes.first) + "-first-" + method,
                    SpreadOf(meshes.first), SpreadOf(meshes.last));
    }
  }
}

}  // namespace
}  // namespace weft::trainer
