// 2:4 sparse trainings whose optimizer is offloaded, against training on the device: the same bits.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/mesh_testing.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

JobSpec SparseJob(const std::string& method, int64_t steps = 6) {
  JobSpec job = TinyJob(4);
  job.train.steps = steps;
  job.train.sparsity.method = method;
  job.train.sparsity.decay = 0.01;
  job.train.sparsity.mask_interval = 2;
  if (method == "step" || method == "activations") job.train.sparsity.switch_share = 0.5;
  if (method == "activations") job.model.activation = "squared_relu";
  return job;
}

// Masks are among the state that is compared. The last step is a dense one.
TEST(OffloadedSparseWeights, HaveTheBitsOfPlainTraining) {
  for (const char* method :
       {"masked_decay", "sr_ste", "s_ste", "static", "slope", "step", "measure", "activations"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      ExpectSame(SparseJob(method), TinyPlan(precision, 2, 2), 6);
    }
  }
}

// It goes back to the first weights four times.
TEST(OffloadedSparseWeights, HaveThemWithASearchForTheDecay) {
  JobSpec job = SparseJob("masked_decay", 24);
  job.train.sparsity.decay_search_steps = 4;
  for (const char* where : {"host", "nvme"}) {
    SCOPED_TRACE(where);
    Plan plan = TinyPlan("bf16", 2, 2);
    plan.offload_optimizer = where;
    ExpectSame(job, plan, 24);
  }
}

TEST(OffloadedSparseWeights, HaveThemWithMomentsInAFileAndUnitsThatAreUpdatedOnTheDevice) {
  for (const char* method : {"masked_decay", "sr_ste"}) {
    SCOPED_TRACE(method);
    JobSpec job = SparseJob(method);
    job.model.family = "llama";
    job.model.mlp_width = 48;
    Plan plan = TinyPlan("fp32", 2, 2);
    plan.offload_optimizer = "nvme";
    ExpectSame(job, plan, 6);
    plan.offload_optimizer = "host";
    plan.device_updated_units = {0, 1};
    ExpectSame(job, plan, 6);
  }
}

// Masks of the next step are there at the end of each, also of one whose update is not made: with
// fp16 gradients overflow in the first ones.
TEST(OffloadedSparseWeights, ARestoredStateGoesOnBitForBit) {
  JobSpec job = SparseJob("masked_decay", 8);
  job.train.loss_scaling.initial = 0x1p25;
  for (const char* precision : {"bf16", "fp16"}) {
    for (const int64_t steps : {2, 3, 4}) {
      SCOPED_TRACE(std::string(precision) + " " + std::to_string(steps));
      ExpectSameOnceRestored(job, TinyPlan(precision), steps);
    }
  }
}

// Flips are reported in the same steps, too.
TEST(OffloadedSparseWeights, MeasureTheFlipsOfPlainTraining) {
  const JobSpec job = SparseJob("measure");
  Training plain(job, TinyPlan("fp32"), false), offloaded(job, TinyPlan("fp32"), true);
  int64_t measured = 0;
  for (int i = 0; i < 6; ++i) {
    const auto a = plain.trainer->Step(), b = offloaded.trainer->Step();
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->technique_metrics, b->technique_metrics) << i;
    measured += std::ssize(a->technique_metrics);
  }
  EXPECT_EQ(measured, 3);
}

// Each rank decays its shard, under the part of the mask that this has.
TEST(OffloadedSparseWeights, OfRanksThatShardTheirUpdatesAreThoseOfOneRank) {
  for (const int64_t stage : {1, 2}) {
    SCOPED_TRACE(stage);
    MeshCase c{SparseJob("masked_decay"), TinyPlan("fp32", 2)};
    c.job.train.sparsity.gradient_estimate = "exact";
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

// In the mean over steps with and without a search for masks.
TEST(OffloadedSparseWeights, SendUpWhatIsCounted) {
  for (const char* method : {"masked_decay", "s_ste", "static", "measure"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      JobSpec job = SparseJob(method, 8);
      job.model.width = 128;
      job.model.vocab_size = 768;  // in whole tiles
      job.train.sparsity.dense_share = 0;
      Training training(job, TinyPlan(precision), true);
      const auto step = [&] { ASSERT_TRUE(training.trainer->Step().ok()); };
      for (int i = 0; i < 2; ++i) step();
      const int64_t before = training.context.host->up().totals().bytes;
      constexpr int kSteps = 4;
      for (int i = 0; i < kSteps; ++i) step();
      const int64_t measured = training.context.host->up().totals().bytes - before;
      const MemoryInputs inputs =
          MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
      const auto counted = static_cast<double>(kSteps * UploadedWeightBytes(inputs));
      EXPECT_NEAR(static_cast<double>(measured), counted, 0.01 * counted);
    }
  }
}

TEST(OffloadedSparseWeights, TakeOfEachTierWhatIsPredicted) {
  for (const char* method : {"masked_decay", "slope", "measure"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      JobSpec job = SparseJob(method, 4);
      job.model.layers = 4;
      job.model.width = 128;
      job.model.context = 64;
      job.train.sparsity.dense_share = 0;
      Training training(job, TinyPlan(precision, 4), true);
      for (int step = 0; step < 4; ++step) ASSERT_TRUE(training.trainer->Step().ok());
      const MemoryInputs inputs =
          MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
      ExpectPredictedTiers(inputs, training, 0.03);
    }
  }
}

}  // namespace
}  // namespace weft::engine
