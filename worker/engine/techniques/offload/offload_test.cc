// Training with state in the host memory pool against plain training: the same bits.
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "kernels/cpu/isa.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

TEST(OffloadTest, HasTheBitsOfPlainTrainingInEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    for (const int64_t accumulation : {1, 2}) {
      SCOPED_TRACE(std::string(precision) + " " + std::to_string(accumulation));
      ExpectSame(TinyJob(4), TinyPlan(precision, 4 / accumulation, accumulation));
    }
    Plan disk = TinyPlan(precision, 2, 2);
    disk.offload_optimizer = "nvme";
    ExpectSame(TinyJob(4), disk);
    SCOPED_TRACE(std::string(precision) + " llama");
    ExpectSame(LlamaJob(), TinyPlan(precision));
  }
}

TEST(OffloadTest, HasThemWithFrozenAndSharedParametersAveragesRecomputationAndTightClipping) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.model.distinct_blocks = 2;
  job.model.freeze = {"*.h.0.attn.*", "*ln_f*"};
  job.model.dropout = 0.1;
  job.model.attention_dropout = 0.1;
  job.train.averaging.kind = "ema";
  job.train.averaging.every_steps = 1;
  job.train.gradient_clip_norm = 0.01;
  job.train.log_every_steps = 2;
  Plan plan = TinyPlan("bf16", 2, 2);
  plan.block_memory_policy = {"recompute", "keep", "recompute", "keep"};
  ExpectSame(job, plan);
}

TEST(OffloadTest, ANonFiniteGradientLeavesParametersAndStateAsTheyWere) {
  Training training(TinyJob(4), TinyPlan("bf16"), true);
  ASSERT_TRUE(training.trainer->Step().ok());
  const auto before = training.State();
  // A weight that is not finite makes the loss so.
  float* value = training.model->parameters().value(0).As<float>();
  const float kept = value[0];
  value[0] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(training.trainer->Restored(training.trainer->counters()).ok());
  const auto report = training.trainer->Step();
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->skipped);
  value[0] = kept;
  EXPECT_EQ(Differing(training.State(), before), "");
}

TEST(OffloadTest, TheDeviceHoldsNoOptimizerStateAndFewGradients) {
  const Plan plan = TinyPlan("bf16");
  Training plain(TinyJob(4), plan, false), offloaded(TinyJob(4), plan, true);
  ASSERT_TRUE(plain.trainer->Step().ok() && offloaded.trainer->Step().ok());
  const MemoryBreakdown all = plain.context.allocator->Peaks();
  const MemoryBreakdown device = offloaded.context.allocator->Peaks();
  const MemoryBreakdown host = offloaded.context.host->allocator().Peaks();
  EXPECT_EQ(device.optimizer_bytes, 0);
  EXPECT_EQ(host.optimizer_bytes, all.optimizer_bytes);
  EXPECT_EQ(host.gradients_bytes, all.gradients_bytes);
  EXPECT_LT(device.gradients_bytes, all.gradients_bytes);
  EXPECT_EQ(device.activations_bytes, all.activations_bytes);
}

TEST(OffloadTest, BytesOverTheLinkAreThoseOfTheFormula) {
  for (const int64_t accumulation : {1, 3}) {
    Training training(TinyJob(6), TinyPlan("bf16", 6 / accumulation, accumulation), true);
    ASSERT_TRUE(training.trainer->Step().ok());  // packs twice
    HostMemoryPool& host = *training.context.host;
    ASSERT_TRUE(host.up().WaitForAll().ok());
    const LinkTotals down = host.down().totals(), up = host.up().totals();
    ASSERT_TRUE(training.trainer->Step().ok());
    ASSERT_TRUE(host.up().WaitForAll().ok());
    const ParameterSet& parameters = training.model->parameters();
    int64_t gradients = 0, operands = 0, packed = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      gradients += 4 * p.shape.Elements();
      if (parameters.has_operand_copy(i)) operands += 4 * p.shape.Elements();
      // The table of tokens is the classifier's weight, too.
      if (p.shape.rank > 1 && (!parameters.has_operand_copy(i) || i == 0))
        packed += p.padded_rows * p.shape[1];
    }
    EXPECT_EQ(host.down().totals().bytes - down.bytes, accumulation * gradients);
    const int64_t weights = host.up().totals().bytes - up.bytes - (accumulation - 1) * gradients;
    // Packed for AMX a number has two bytes; where there is none, products read four.
    EXPECT_TRUE(weights == operands + 2 * packed || weights == operands + 4 * packed)
        << weights << " " << operands << " " << packed;
  }
}

TEST(OffloadTest, WeightsArriveDuringTheNextForwardPass) {
  Plan plan = TinyPlan("fp32", 4);
  plan.host_link_bytes_per_second = 200'000;
  Training training(TinyJob(4), plan, true);
  ASSERT_TRUE(training.trainer->Step().ok());
  TransferQueue& up = training.context.host->up();
  ASSERT_TRUE(up.WaitForAll().ok());
  const int64_t before = up.totals().bytes;
  ASSERT_TRUE(training.trainer->Step().ok());
  const int64_t early = up.totals().bytes - before;
  ASSERT_TRUE(up.WaitForAll().ok());
  EXPECT_LT(early, (up.totals().bytes - before) / 2) << "the step has not waited for them";
}

TEST(OffloadTest, EitherWayGoesOnFromTheStateOfTheOther) {
  const JobSpec job = TinyJob(4);
  const Plan plan = TinyPlan("bf16");
  Training undisturbed(job, plan, false);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(undisturbed.trainer->Step().ok());
  for (const bool first : {false, true}) {
    Plan disk = plan;
    disk.offload_optimizer = "nvme";
    Training from(job, disk, first), to(job, disk, !first);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(from.trainer->Step().ok());
    ASSERT_TRUE(from.trainer->FinishUpdates().ok());
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/c").ok());
    auto file = WriteTensorFile(env, "/c", 0, 1, from.trainer->StateTensors());
    ASSERT_TRUE(file.ok()) << file.status().message();
    CheckpointManifest manifest;
    manifest.files = {*file};
    const Status loaded = LoadTensors(env, "/c", manifest, to.trainer->StateTensors());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(to.trainer->Step().ok());
    EXPECT_EQ(Differing(to.State(), undisturbed.State()), "");
  }
}

// Adam one step late: the update of the gradients of step i overlaps with step i + 1, which
// computes with weights that lack it. The first forty steps and the last one are not late.
std::vector<std::vector<float>> StaleAdam(const JobSpec& job, const Plan& plan, int64_t steps) {
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  TinyRun run(job.model, ModelOptionsOf(plan, job.train));
  ParameterSet& parameters = run.model->parameters();
  const auto rules = ResolveParameterRules(job.optimizer, parameters);
  WEFT_CHECK(rules.ok(), "rules");
  const std::vector<ParameterPart> parts = TrainedParts(parameters);
  // Masters, gradients and moments of each parameter.
  std::vector<std::vector<float>> masters, gradients, means, squares;
  for (const ParameterPart& part : parts) {
    masters.push_back(ValuesOf(part.value));
    gradients.emplace_back(masters.back().size());
    means.emplace_back(masters.back().size());
    squares.emplace_back(masters.back().size());
  }
  const auto update = [&](int64_t t, float rate) {
    std::vector<kernels::UpdateTensor> tensors;
    for (size_t i = 0; i < parts.size(); ++i) {
      kernels::UpdateTensor tensor =
          UpdateTensorOf(parameters, parts[i], (*rules)[static_cast<size_t>(parts[i].index)]);
      tensor.parameter = masters[i].data();
      tensor.gradient = gradients[i].data();
      tensor.state = {means[i].data(), squares[i].data()};
      tensors.push_back(tensor);
    }
    const auto beta = [](double value) { return static_cast<float>(value); };
    const Status made = kernels::Adam({}, {.update = {.tensors = tensors, .learning_rate = rate},
                                           .beta1 = beta(job.optimizer.beta1),
                                           .beta2 = beta(job.optimizer.beta2),
                                           .epsilon = beta(job.optimizer.epsilon),
                                           .step = t});
    WEFT_CHECK(made.ok(), made.message());
  };
  const auto show = [&] {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::copy(masters[i].begin(), masters[i].end(), parts[i].value.As<float>());
    }
    WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
  };
  const auto rate = [&](int64_t step) {
    return static_cast<float>(
        ScheduledLearningRate(job.schedule, PeakLearningRate(job), step, job.train.steps));
  };
  int64_t waiting = -1;  // the step whose gradients wait for their update
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = *tokens.Get(step, 0, plan.micro_batch);
    run.context.step = step;
    run.Differentiate(batch, 1.0f / static_cast<float>(batch.target_count));
    if (waiting >= 0) {
      update(waiting + 1, rate(waiting));
      show();
      waiting = -1;
    }
    for (size_t i = 0; i < parts.size(); ++i) gradients[i] = ValuesOf(parts[i].gradient);
    if (step >= 40 && step + 1 < job.train.steps) {
      waiting = step;
      continue;
    }
    update(step + 1, rate(step));
    show();
  }
  return masters;
}

TEST(OffloadTest, ADelayedUpdateIsAdamOneStepLateBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    JobSpec job = TinyJob(4);
    job.train.steps = 50;
    job.train.gradient_clip_norm = 0;
    job.schedule.kind = "cosine";
    job.optimizer.learning_rate = 3e-3;
    Plan plan = TinyPlan(precision);
    const auto expected = StaleAdam(job, plan, 50);
    for (const char* tier : {"host", "nvme"}) {
      plan.delayed_update = true;
      plan.offload_optimizer = tier;
      Training delayed(job, plan, true);
      for (int i = 0; i < 50; ++i) {
        const auto report = delayed.trainer->Step();
        ASSERT_TRUE(report.ok()) << report.status().message();
      }
      const std::vector<std::vector<float>> got = ValuesOf(delayed.model->parameters());
      EXPECT_TRUE(got == expected) << precision << " " << tier;
    }
    plan.delayed_update = false;
    Training on_time(job, plan, true);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(on_time.trainer->Step().ok());
    EXPECT_FALSE(ValuesOf(on_time.model->parameters()) == expected) << "the delay shows";
  }
}

TEST(OffloadTest, TakesOfEachTierWhatThePlannerPredicts) {
  JobSpec job = TinyJob(2);
  job.model.layers = 6;
  job.model.width = 128;
  job.model.vocab_size = 3000;
  job.model.context = 64;
  if (kernels::cpu::ActiveIsa() < kernels::cpu::Isa::kAvx512Bf16)
    GTEST_SKIP() << "no bf16 products";
  Training training(job, TinyPlan("bf16", 2), true);
  ASSERT_TRUE(training.trainer->Step().ok() && training.trainer->Step().ok());
  const MemoryInputs inputs = MemoryInputsOf(job, training.plan, {});
  const MemoryBreakdown predicted = PredictDeviceTier(inputs);
  const MemoryBreakdown device = training.context.allocator->Peaks();
  if (kernels::cpu::ActiveIsa() >= kernels::cpu::Isa::kAmx) {
    ExpectPredictedBytes("parameters on the device", predicted.parameters_bytes,
                         device.parameters_bytes, 0.03);
  }
  EXPECT_LE(device.gradients_bytes, predicted.gradients_bytes * 103 / 100);
  ExpectPredictedBytes("activations", predicted.activations_bytes, device.activations_bytes, 0.03);
  const MemoryBreakdown all = PredictMemory(inputs);
  const MemoryBreakdown host = training.context.host->allocator().Peaks();
  ExpectPredictedBytes("parameters on the host", all.parameters_bytes - predicted.parameters_bytes,
                       host.parameters_bytes, 0.03);
  ExpectPredictedBytes("gradients on the host", all.gradients_bytes - predicted.gradients_bytes,
                       host.gradients_bytes, 0.03);
  ExpectPredictedBytes("optimizer", all.optimizer_bytes, host.optimizer_bytes, 0.03);
}

TEST(OffloadTest, AModelWhoseStateIsTooLargeForTheDeviceTrainsWithItInTheHostMemoryPool) {
  JobSpec job = TinyJob(1);
  job.model.width = 128;
  job.model.layers = 6;
  Plan plan = TinyPlan("bf16", 1);
  // 1.2 million numbers, of 18 bytes each, or 16 where there are no copies for products.
  plan.device_memory_bytes = 8 << 20;
  Training run;
  const Status plain = run.Make(job, plan, false);
  EXPECT_EQ(plain.code(), StatusCode::kExhausted);
  EXPECT_THAT(plain.message(), HasSubstr("goes past the limit of " +
                                         std::to_string(plan.device_memory_bytes) + " bytes"));
  Training offloaded(job, plan, true);
  const auto report = offloaded.trainer->Step();
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_LE(offloaded.context.allocator->held_bytes(), plan.device_memory_bytes);
  EXPECT_GT(TotalBytes(report->peak_memory), 2 * plan.device_memory_bytes);
  EXPECT_EQ(TotalBytes(report->device_memory), TotalBytes(offloaded.context.allocator->Peaks()));
}

}  // namespace
}  // namespace weft::engine
