// Pruned trainings whose optimizer is offloaded, against training on the device: the same bits.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/mesh_testing.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/techniques/pruning/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

constexpr int kSteps = 5;

/// Weights are exchanged in steps 2 and 4. A lottery ticket has a first training of three steps,
/// and a round of two.
JobSpec OffloadedJob(const std::string& method, const std::string& products = "auto") {
  JobSpec job = PrunedJob(PruningBy(method, 0.25));
  job.train.steps = kSteps;
  job.train.pruning.stop_ratio = 1;
  job.train.pruning.products = products;
  if (method == "lottery_ticket") {
    job.train.pruning.rounds = 1;
    job.train.pruning.rewind_step = 1;
  }
  return job;
}

// Masks are among the state that is compared. In fp32 products are of the kept weights alone.
TEST(OffloadedPruning, HasTheBitsOfPlainTraining) {
  for (const char* method : {"magnitude", "snip", "grasp", "set", "rigl", "lottery_ticket"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      ExpectSame(OffloadedJob(method), TinyPlan(precision, 4, 2), kSteps);
    }
  }
}

TEST(OffloadedPruning, HasThemWithMomentsInAFileAndUnitsThatAreUpdatedOnTheDevice) {
  for (const char* method : {"rigl", "lottery_ticket"}) {
    SCOPED_TRACE(method);
    JobSpec job = OffloadedJob(method);
    job.model.family = "llama";
    job.model.mlp_width = 48;
    Plan plan = TinyPlan("fp32", 4, 2);
    plan.offload_optimizer = "nvme";
    ExpectSame(job, plan, kSteps);
    plan.offload_optimizer = "host";
    plan.device_updated_units = {0, 1};
    ExpectSame(job, plan, kSteps);
  }
}

// Before and after a step that exchanges weights, and within a round.
TEST(OffloadedPruning, ARestoredStateGoesOnBitForBit) {
  for (const char* method : {"rigl", "lottery_ticket"}) {
    for (const int64_t steps : {2, 3, 4}) {
      SCOPED_TRACE(std::string(method) + " " + std::to_string(steps));
      ExpectSameOnceRestored(OffloadedJob(method), TinyPlan("bf16", 4, 2), steps);
    }
  }
}

// Each has a shard of the gradients and moments, and all weights.
TEST(OffloadedPruning, OfRanksThatShardTheirUpdatesIsThatOfOneRank) {
  for (const char* method : {"snip", "rigl", "lottery_ticket"}) {
    for (const int64_t stage : {1, 2}) {
      SCOPED_TRACE(std::string(method) + " " + std::to_string(stage));
      MeshCase c{OffloadedJob(method), TinyPlan("fp32", 2)};
      c.plan.accumulation_steps = 2;
      c.plan.mesh.data = 2;
      c.plan.zero_stage = stage;
      c.plan.bucket_bytes = kBucketBytes;
      const MeshOutcome whole = TrainOnMesh(c.Whole()).front();
      c.plan.offload_optimizer = "host";
      for (const Offloaded& rank : TrainOffloaded(c)) {
        ASSERT_EQ(rank.reports.size(), whole.reports.size());
        for (size_t step = 0; step < whole.reports.size(); ++step) {
          EXPECT_NEAR(rank.reports[step].loss, whole.reports[step].loss, 2e-5) << step;
        }
        EXPECT_NEAR(rank.evaluation, whole.evaluation, 2e-5);
      }
    }
  }
}

// Masks, and the weights that rounds go back to, are where the moments are.
TEST(OffloadedPruning, TakesOfEachTierWhatIsPredicted) {
  for (const char* method : {"rigl", "lottery_ticket"}) {
    SCOPED_TRACE(method);
    JobSpec job = OffloadedJob(method, "dense");
    job.model.layers = 4;
    job.model.width = 128;
    Training training(job, TinyPlan("fp32", 4, 2), true);
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(training.trainer->Step().ok());
    const MemoryInputs inputs =
        MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf("fp32").products)});
    EXPECT_TRUE(inputs.technique_products.uploads_at_once);
    ExpectPredictedTiers(inputs, training, 0.01);
    EXPECT_EQ(training.context.allocator->Peaks().optimizer_bytes, 0);
  }
}

}  // namespace
}  // namespace weft::engine
