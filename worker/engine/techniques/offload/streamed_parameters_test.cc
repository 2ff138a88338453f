// Parameters that come to the device unit by unit against parameters that stay there.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/gradient_bytes.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

Plan StreamPlan(const std::string& precision, int64_t micro_batch = 4, int64_t accumulation = 1) {
  Plan plan = TinyPlan(precision, micro_batch, accumulation);
  plan.offload_optimizer = "host";
  plan.offload_parameters = "host";
  return plan;
}

TEST(StreamedParametersTest, HaveTheBitsOfPlainTrainingInEveryPrecision) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    for (const char* optimizer : {"host", "nvme"}) {
      for (const char* activations : {"none", "host"}) {
        SCOPED_TRACE(std::string(precision) + " " + optimizer + " " + activations);
        Plan plan = StreamPlan(precision, 2, 2);
        plan.offload_optimizer = optimizer;
        plan.offload_activations = activations;
        ExpectSame(job, plan, 3);
        ExpectSame(LlamaJob(), plan, 2);
      }
    }
  }
}

TEST(StreamedParametersTest, HaveThemWithFrozenSharedAndRecomputedBlocksAndAverages) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.model.dropout = 0.1;
  job.train.averaging.kind = "ema";
  job.train.averaging.every_steps = 1;
  job.train.log_every_steps = 2;
  Plan plan = StreamPlan("bf16", 2, 2);
  plan.block_memory_policy = {"recompute", "attention", "recompute", "keep"};
  ExpectSame(job, plan);
  job.model.distinct_blocks = 2;
  ExpectSame(job, plan);
  job.model.distinct_blocks = 0;
  job.model.embedding_width = 16;
  ExpectSame(job, plan);
  job.model.embedding_width = 0;
  job.model.freeze = {"transformer.w*", "*.h.0.*", "*.h.2.mlp.*"};
  ExpectSame(job, plan);
}

TEST(StreamedParametersTest, HaveThemWhicheverUnitsStayUntilTheUpdate) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.train.log_every_steps = 2;
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    for (const std::vector<int64_t>& units : std::vector<std::vector<int64_t>>{
             {0}, {5}, {1}, {4}, {2, 3}, {0, 2, 4}, {1, 3, 5}, {1, 2, 3, 4}, {0, 1, 2, 4, 5}}) {
      SCOPED_TRACE(std::string(precision) + " " + ::testing::PrintToString(units));
      Plan plan = StreamPlan(precision, 2, 2);
      plan.resident_units = units;
      ExpectSame(job, plan);
    }
  }
  job.model.dropout = 0.1;
  job.train.averaging.kind = "ema";
  job.train.averaging.every_steps = 1;
  Plan plan = StreamPlan("bf16", 2, 2);
  plan.offload_optimizer = "nvme";
  plan.offload_activations = "host";
  plan.resident_units = {0, 2, 3};
  plan.block_memory_policy = {"recompute", "attention", "recompute", "keep"};
  ExpectSame(job, plan);
  job.model.freeze = {"transformer.w*", "*.h.0.*", "*.h.2.mlp.*"};
  ExpectSame(job, plan);
  job.model.freeze.clear();
  job.model.distinct_blocks = 2;
  plan.resident_units = {1, 3};
  ExpectSame(job, plan);
}

TEST(StreamedParametersTest, UnitsThatStayGoOnFromAnotherState) {
  const JobSpec job = TinyJob(4);
  Plan plan = StreamPlan("bf16");
  Training undisturbed(job, plan, false);
  plan.resident_units = {0, 1, 2};
  Training from(job, plan, true), to(job, plan, true);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(undisturbed.trainer->Step().ok() && from.trainer->Step().ok());
  }
  ASSERT_TRUE(from.trainer->FinishUpdates().ok());
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/c").ok());
  auto file = WriteTensorFile(env, "/c", 0, 1, from.trainer->StateTensors());
  ASSERT_TRUE(file.ok()) << file.status().message();
  CheckpointManifest manifest;
  manifest.files = {*file};
  // What has come for an evaluation is of other weights, and not used again.
  ASSERT_TRUE(to.trainer->Evaluate().ok());
  const Status loaded = LoadTensors(env, "/c", manifest, to.trainer->StateTensors());
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
  ASSERT_TRUE(undisturbed.trainer->Step().ok() && to.trainer->Step().ok());
  EXPECT_EQ(Differing(undisturbed.State(), to.State()), "");
}

TEST(StreamedParametersTest, BytesOnTheDeviceAndOverTheLinkAreThoseOfThePlanner) {
  for (const std::vector<int64_t>& stays :
       std::vector<std::vector<int64_t>>{{}, {1, 4, 6}, {0, 2, 5, 7}}) {
    for (const char* family : {"gpt2", "llama"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(family) + " " + precision + ::testing::PrintToString(stays));
        JobSpec job = TinyJob(4);
        job.model.family = family;
        job.model.untied_classifier = job.model.family == "llama";
        job.model.layers = 6;
        job.model.width = 128;
        job.model.vocab_size = 700;  // no size of a block's
        job.model.context = 32;
        Plan plan = StreamPlan(precision, 2, 2);
        plan.resident_units = stays;
        plan.bucket_bytes = BlockGradientBytes(job.model);
        Training training(job, plan, true);
        ASSERT_TRUE(training.trainer->Step().ok());
        HostMemoryPool& host = *training.context.host;
        const int64_t down = host.down().totals().bytes, up = host.up().totals().bytes;
        const auto report = training.trainer->Step();
        ASSERT_TRUE(report.ok()) << report.status().message();

        const MemoryInputs inputs =
            MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
        const MemoryBreakdown all = PredictMemory(inputs), predicted = PredictDeviceTier(inputs);
        ExpectPredictedBytes("device", predicted.parameters_bytes,
                             report->device_memory.parameters_bytes);
        ExpectPredictedBytes("both", all.parameters_bytes, report->peak_memory.parameters_bytes);
        ExpectPredictedBytes("activations", predicted.activations_bytes,
                             report->device_memory.activations_bytes);
        EXPECT_LE(report->device_memory.gradients_bytes, predicted.gradients_bytes * 101 / 100);
        EXPECT_EQ(report->device_memory.optimizer_bytes, 0);

        int64_t gradients = 0;
        const ParameterSet& parameters = training.model->parameters();
        for (int64_t i = 0; i < parameters.size(); ++i)
          gradients += 4 * parameters[i].shape.Elements();
        const StreamedBytes streamed = StreamedWeightBytes(inputs);
        EXPECT_EQ(host.down().totals().bytes - down, 2 * gradients);
        // The sums of the first micro-batch come up in the second.
        ExpectPredictedBytes(
            "up",
            2 * (streamed.forward + streamed.backward) + ResidentWeightBytes(inputs) + gradients,
            host.up().totals().bytes - up);
        EXPECT_EQ(UploadedWeightBytes(inputs), 0);
      }
    }
  }
}

// Parameters, gradients and moments are sixteen bytes a number.
TEST(StreamedParametersTest, AModelOfTenTimesTheDeviceTrainsWithTheBitsOfPlainTraining) {
  JobSpec job = TinyJob(1);
  job.model.width = 64;
  job.model.layers = 24;
  for (const char* optimizer : {"host", "nvme"}) {
    SCOPED_TRACE(optimizer);
    Plan plan = StreamPlan("fp32", 1);
    plan.offload_optimizer = optimizer;
    plan.offload_activations = "host";
    Training whole(job, plan, false);
    const int64_t state = 16 * whole.model->parameters().ElementCount();
    plan.device_memory_bytes = state / 10;
    Training refused;
    Plan resident = plan;
    resident.offload_parameters = "none";
    const Status made = refused.Make(job, resident, true);
    EXPECT_EQ((made.ok() ? refused.trainer->Step().status() : made).code(), StatusCode::kExhausted);
    Training streamed(job, plan, true);
    for (int i = 0; i < 3; ++i) {
      const auto a = whole.trainer->Step(), b = streamed.trainer->Step();
      ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
      EXPECT_EQ(a->loss, b->loss);
      EXPECT_LE(streamed.context.allocator->held_bytes(), plan.device_memory_bytes);
    }
    EXPECT_GE(state, 10 * streamed.context.allocator->held_bytes());
    EXPECT_EQ(Differing(whole.State(), streamed.State()), "");
  }
}

TEST(StreamedParametersTest, BlocksThatAreRecomputedTogetherAreRefused) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  Plan plan = StreamPlan("bf16");
  plan.block_memory_policy.assign(4, "recompute");
  plan.recompute_segment = 2;
  Training training;
  const Status refused = training.Make(job, plan, true);
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.message(), HasSubstr("does not go with resources.recompute_segment 2"));
}

}  // namespace
}  // namespace weft::engine
