// Training with state outside a CUDA device: against the CPU, which has it outside, too, and
// against the device alone.

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr Device kCpu{};
constexpr Device kCuda{DeviceType::kCuda, 0};

class OffloadOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

JobSpec Job(int64_t global_batch = 4) {
  JobSpec job = TinyJob(global_batch);
  job.train.eval_sequences = 4;
  job.train.log_every_steps = 2;
  return job;
}

/// With several buckets, also of tiny models.
Plan Offloaded(const std::string& precision, int64_t micro_batch, int64_t accumulation_steps = 1,
               const std::string& optimizer = "host") {
  Plan plan = TinyPlan(precision, micro_batch, accumulation_steps);
  plan.bucket_bytes = 16384;
  plan.offload_optimizer = optimizer;
  if (optimizer == "nvme") plan.offload_directory = ::testing::TempDir();
  return plan;
}

Plan OnDevice(Plan plan) {
  plan.offload_optimizer = plan.offload_activations = plan.offload_parameters = "none";
  plan.offload_directory.clear();
  return plan;
}

std::vector<std::vector<float>> StateOf(DeviceRun& run) {
  const Status finished = run.trainer->FinishUpdates();
  WEFT_CHECK(finished.ok(), finished.message());
  return run.State();
}

void ExpectNear(DeviceRun& got_run, DeviceRun& want_run, double tolerance, int64_t step) {
  const StepReport want = want_run.Step(), got = got_run.Step();
  EXPECT_NEAR(got.loss / want.loss, 1, tolerance) << step;
  EXPECT_EQ(got.skipped, want.skipped) << step;
  EXPECT_EQ(got.loss_scale, want.loss_scale) << step;
  EXPECT_EQ(got.non_finite_gradients > 0, want.non_finite_gradients > 0) << step;
  if (!want.skipped) {
    EXPECT_NEAR(got.gradient_norm / want.gradient_norm, 1, 10 * tolerance) << step;
  }
  ASSERT_EQ(got.norms.size(), want.norms.size());
  for (size_t g = 0; g < want.norms.size(); ++g) {
    EXPECT_NEAR(got.norms[g].gradient / want.norms[g].gradient, 1, 20 * tolerance);
    EXPECT_NEAR(got.norms[g].parameter / want.norms[g].parameter, 1, tolerance);
  }
  ASSERT_EQ(got.technique_metrics.size(), want.technique_metrics.size());
}

/// Where two runs have come to.
void ExpectNearEnds(DeviceRun& got_run, DeviceRun& want_run, double tolerance) {
  EXPECT_EQ(got_run.trainer->counters().updates, want_run.trainer->counters().updates);
  EXPECT_LT(Distance(StateOf(got_run), StateOf(want_run)), 30 * tolerance);
  auto want = want_run.trainer->Evaluate(), got = got_run.trainer->Evaluate();
  ASSERT_TRUE(want.ok() && got.ok()) << got.status().ToString();
  EXPECT_NEAR(got->loss / want->loss, 1, tolerance);
  auto finite = got_run.trainer->WeightsAreFinite();
  ASSERT_TRUE(finite.ok());
  EXPECT_TRUE(*finite);
}

/// `plan`, which offloads, on the device against the same on the CPU.
void CompareWithCpu(const JobSpec& job, const Plan& plan, int64_t steps) {
  SCOPED_TRACE("against the CPU");
  RandomTokens data(job.model.vocab_size, job.model.context);
  DeviceRun cpu(job, plan, data, kCpu), cuda(job, plan, data, kCuda);
  const double tolerance = Tolerance(plan.precision);
  for (int64_t step = 0; step < steps; ++step) ExpectNear(cuda, cpu, tolerance, step);
  EXPECT_EQ(cuda.trainer->graph_steps(), 0);
  ExpectNearEnds(cuda, cpu, tolerance);
}

/// The same against the device without offload. The gradients of a step have the same bits; the
/// update is the host's, whose AdamW rounds otherwise in the last place, and so is the norm.
void CompareWithDevice(const JobSpec& job, const Plan& plan, int64_t steps) {
  SCOPED_TRACE("against the device alone");
  RandomTokens data(job.model.vocab_size, job.model.context);
  DeviceRun plain(job, OnDevice(plan), data, kCuda, {.graphs = false}),
      offloaded(job, plan, data, kCuda);
  const double tolerance = Tolerance(plan.precision);
  for (int64_t step = 0; step < steps; ++step) {
    ExpectNear(offloaded, plain, step == 0 ? 1e-6 : tolerance, step);
  }
  ExpectNearEnds(offloaded, plain, tolerance);
}

TEST_F(OffloadOnCuda, FollowsTheCpuAndTheDeviceInEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    SCOPED_TRACE(precision);
    CompareWithCpu(Job(), Offloaded(precision, 4), 3);
    CompareWithDevice(Job(), Offloaded(precision, 2, 2), 3);
  }
}

TEST_F(OffloadOnCuda, FollowsThemWithAveragesFrozenAndSharedParametersAndTightClipping) {
  JobSpec job = Job();
  job.model.layers = 4;
  job.model.distinct_blocks = 2;
  job.model.freeze = {"*.h.0.attn.*", "*ln_f*"};
  job.model.dropout = 0.1;
  job.train.averaging = {.kind = "ema", .decay = 0.5, .every_steps = 1};
  job.train.gradient_clip_norm = 0.01;
  job.train.gradient_noise_scale = true;
  Plan plan = Offloaded("bf16", 2, 2);
  plan.block_memory_policy = {"recompute", "keep", "recompute", "keep"};
  CompareWithCpu(job, plan, 3);
  job.train.averaging = {.kind = "lawa", .every_steps = 1, .window = 2};
  CompareWithDevice(job, plan, 3);
}

TEST_F(OffloadOnCuda, FollowsThemWithOtherFamilies) {
  JobSpec llama = Job(2);
  llama.model.family = "llama";
  llama.model.kv_heads = 1;
  llama.model.untied_classifier = true;
  CompareWithCpu(llama, Offloaded("bf16", 2), 3);
  CompareWithDevice(llama, Offloaded("fp32", 2), 3);
}

TEST_F(OffloadOnCuda, FollowsThemWithSparseWeights) {
  JobSpec job = Job(2);
  job.model.layers = 1;
  job.train.sparsity = {.method = "masked_decay", .decay = 1e-2, .mask_interval = 2};
  CompareWithCpu(job, Offloaded("fp32", 2), 3);
  job.train.sparsity.method = "sr_ste";
  CompareWithDevice(job, Offloaded("fp32", 1, 2), 3);
  job.train.sparsity.method = "s_ste";
  CompareWithDevice(job, Offloaded("fp32", 2), 2);
  // Roundings that differ would choose other masks, and draw other rows.
  job.train.sparsity.mask_interval = 100;
  job.train.sparsity.gradient_estimate = "exact";
  CompareWithCpu(job, Offloaded("bf16", 2), 2);
  CompareWithDevice(job, Offloaded("bf16", 2), 2);
  job.train.sparsity.method = "sr_ste";
  CompareWithCpu(job, Offloaded("bf16", 2), 2);
  job.train.sparsity.method = "masked_decay";
  CompareWithDevice(job, Offloaded("bf16", 2), 2);
}

// A search in every step, and weights in f32 to threshold.
TEST_F(OffloadOnCuda, SparseWeightsSendUpWhatIsCounted) {
  JobSpec job = Job(2);
  job.model.layers = 1;
  job.model.vocab_size = 64;  // as many as its table has rows
  job.train.sparsity = {.method = "s_ste", .gradient_estimate = "exact"};
  const Plan plan = Offloaded("bf16", 2);
  RandomTokens data(job.model.vocab_size, job.model.context);
  DeviceRun run(job, plan, data, kCuda);
  run.Step();
  const int64_t before = run.context.host->up().totals().bytes;
  run.Step();
  const auto measured = static_cast<double>(run.context.host->up().totals().bytes - before);
  const auto counted =
      static_cast<double>(UploadedWeightBytes(MemoryInputsOf(job, plan, CudaMachine("9.0"))));
  EXPECT_NEAR(measured, counted, 0.01 * counted);
}

TEST_F(OffloadOnCuda, ASkippedUpdateLeavesTheStateAsItIs) {
  RandomTokens data(50, 16);
  DeviceRun run(Job(2), Offloaded("bf16", 2), data, kCuda);
  run.Step();
  const auto before = StateOf(run);
  ASSERT_TRUE(SetFailpoints("trainer.loss=error").ok());
  EXPECT_TRUE(run.Step().skipped);
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_EQ(StateOf(run), before);
  EXPECT_FALSE(run.Step().skipped);
  EXPECT_NE(StateOf(run), before);
}

TEST_F(OffloadOnCuda, AnOverflowLowersTheLossScale) {
  JobSpec job = Job(2);
  job.model.layers = 1;
  job.train.loss_scaling.initial = 0x1p24;
  CompareWithCpu(job, Offloaded("fp16", 2), 6);
}

// As the tensors of a checkpoint do, whose files are the same.
void MoveState(DeviceRun& from, DeviceRun& to) {
  const auto state = StateOf(from);
  const Status finished = to.trainer->FinishUpdates();
  ASSERT_TRUE(finished.ok());
  const std::vector<NamedTensor> tensors = to.trainer->StateTensors();
  ASSERT_EQ(tensors.size(), state.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(tensors[i].name, from.trainer->StateTensors()[i].name);
    ASSERT_EQ(tensors[i].view.dtype, DType::kF32);
    ASSERT_TRUE(Upload(to.context.stream, state[i].data(), tensors[i].view).ok());
  }
  ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
}

TEST_F(OffloadOnCuda, EitherWayGoesOnFromTheStateOfTheOther) {
  RandomTokens data(50, 16);
  const JobSpec job = Job(2);
  const Plan plan = Offloaded("bf16", 2);
  DeviceRun undisturbed(job, plan, data, kCuda), first(job, plan, data, kCuda),
      alone(job, OnDevice(plan), data, kCuda), last(job, plan, data, kCuda);
  for (int step = 0; step < 4; ++step) undisturbed.Step();
  for (int step = 0; step < 2; ++step) first.Step();
  MoveState(first, alone);
  EXPECT_EQ(StateOf(alone), StateOf(first));
  MoveState(alone, last);
  for (int step = 0; step < 2; ++step) last.Step();
  EXPECT_EQ(StateOf(last), StateOf(undisturbed));
}

TEST_F(OffloadOnCuda, ActivationsThatWaitOnTheHostHaveTheBitsOfThoseThatStay) {
  RandomTokens data(50, 16);
  for (const auto& [precision, bits] : {std::pair<std::string, int64_t>{"fp32", 0},
                                        {"bf16", 0},
                                        {"fp8", 0},
                                        {"fp32", 8},
                                        {"bf16", 4}}) {
    SCOPED_TRACE(precision + " in " + std::to_string(bits));
    JobSpec job = Job(2);
    job.model.layers = 4;
    job.model.dropout = 0.1;
    Plan plan = TinyPlan(precision, 1, 2);
    plan.activation_bits = bits;
    plan.block_memory_policy = {"recompute", "keep", "attention", "keep"};
    Plan offloaded_plan = plan;
    offloaded_plan.offload_activations = "host";
    DeviceRun plain(job, plan, data, kCuda, {.graphs = false}),
        offloaded(job, offloaded_plan, data, kCuda);
    for (int64_t step = 0; step < 3; ++step) {
      const StepReport want = plain.Step(), got = offloaded.Step();
      EXPECT_EQ(got.loss, want.loss) << step;
      EXPECT_EQ(got.gradient_norm, want.gradient_norm) << step;
      EXPECT_LT(got.device_memory.activations_bytes, want.step_memory.activations_bytes);
    }
    EXPECT_EQ(StateOf(offloaded), StateOf(plain));
  }
}

TEST_F(OffloadOnCuda, EverythingOutsideFollowsTheCpuAndTheDevice) {
  for (const char* optimizer : {"host", "nvme"}) {
    for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
      SCOPED_TRACE(std::string(optimizer) + " " + precision);
      JobSpec job = Job();
      job.model.layers = 4;
      Plan plan = Offloaded(precision, 2, 2, optimizer);
      plan.offload_parameters = "host";
      CompareWithCpu(job, plan, 2);
      plan.offload_activations = "host";
      plan.block_memory_policy = {"recompute", "keep", "keep", "recompute"};
      CompareWithDevice(job, plan, 2);
    }
  }
}

// The first 40 steps are not late.
TEST_F(OffloadOnCuda, LateUpdatesFollowTheCpu) {
  JobSpec job = Job(2);
  job.model.layers = 1;
  Plan plan = Offloaded("fp32", 2);
  plan.delayed_update = true;
  CompareWithCpu(job, plan, 46);
}

}  // namespace
}  // namespace weft::engine
