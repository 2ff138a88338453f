// The whole engine on a CUDA device against the whole engine on the CPU.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "common/spec/padded_length.h"
#include "common/spec/peft_spec.h"
#include "kernels/cuda/cusparse_library.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/checkpoint/testing.h"
#include "worker/engine/checkpoint/writer.h"
#include "worker/engine/data/testing.h"
#include "worker/engine/models/generate.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/padded_documents.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/testing/trainer_on_cuda.h"

namespace weft::engine {
namespace {

// Trains both for this many steps and compares what they report and where they end.
void Compare(const JobSpec& job, const Plan& plan, BatchSource& data, int64_t steps,
             const std::function<void(const StepReport&)>& also = {}) {
  DeviceRun cpu(job, plan, data, kCpuDevice), cuda(job, plan, data, kCudaDevice);
  const double tolerance = Tolerance(plan.precision);
  for (int64_t step = 0; step < steps; ++step) {
    const StepReport want = cpu.Step(), got = cuda.Step();
    ASSERT_NEAR(got.loss / want.loss, 1, tolerance) << step;
    ASSERT_EQ(got.skipped, want.skipped) << step;
    ASSERT_EQ(got.overflow, want.overflow) << step;
    ASSERT_EQ(got.loss_scale, want.loss_scale) << step;
    ASSERT_EQ(got.targets, want.targets) << step;
    ASSERT_EQ(got.spike, want.spike) << step;
    if (!want.skipped) {
      ASSERT_NEAR(got.gradient_norm / want.gradient_norm, 1, 10 * tolerance) << step;
    }
    ASSERT_EQ(got.norms.size(), want.norms.size());
    for (size_t g = 0; g < want.norms.size(); ++g) {
      EXPECT_EQ(got.norms[g].group, want.norms[g].group);
      // A factor has a zero gradient while the other one is still zero.
      EXPECT_NEAR(got.norms[g].gradient, want.norms[g].gradient,
                  20 * tolerance * want.norms[g].gradient);
      EXPECT_NEAR(got.norms[g].parameter, want.norms[g].parameter,
                  tolerance * want.norms[g].parameter);
    }
    ASSERT_EQ(got.technique_metrics.size(), want.technique_metrics.size());
    if (also) also(got);
  }
  EXPECT_EQ(cuda.trainer->counters().updates, cpu.trainer->counters().updates);
  EXPECT_EQ(cuda.trainer->counters().loss_scale, cpu.trainer->counters().loss_scale);
  EXPECT_LT(Distance(cuda.State(), cpu.State()), 30 * tolerance);
  auto want = cpu.trainer->Evaluate(), got = cuda.trainer->Evaluate();
  ASSERT_TRUE(want.ok() && got.ok()) << got.status().ToString();
  EXPECT_NEAR(got->loss / want->loss, 1, tolerance);
  EXPECT_EQ(got->targets, want->targets);
  auto finite = cuda.trainer->WeightsAreFinite();
  ASSERT_TRUE(finite.ok());
  EXPECT_TRUE(*finite);
}

TEST_F(TrainerOnCuda, TwentyStepsOfGpt2FollowTheCpu) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda();
  job.model.dropout = 0.1;
  job.train.gradient_clip_norm = 0.5;
  Plan plan = TinyPlan("fp32", 2, 2);
  plan.block_memory_policy = {"recompute", "keep"};
  Compare(job, plan, data, kManySteps);
  Compare(JobOnCuda(), TinyPlan("bf16"), data, kManySteps);
}

TEST_F(TrainerOnCuda, Fp8FollowsTheCpu) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  Compare(job, TinyPlan("fp8", 2), data, 3);
  // All tokens go to all experts: roundings that differ choose no others.
  job.model.family = "llama";
  job.model.experts = job.model.experts_per_token = 2;
  Compare(job, TinyPlan("fp8", 2), data, 3);
}

TEST_F(TrainerOnCuda, CompressedActivationsFollowTheCpu) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  for (const int64_t bits : {8, 4, 2}) {
    SCOPED_TRACE(bits);
    Plan plan = TinyPlan("fp32", 2);
    plan.activation_bits = bits;
    Compare(job, plan, data, 3);
  }
  job.model.layers = 2;
  job.model.dropout = 0.1;
  Plan plan = TinyPlan("bf16", 1, 2);
  plan.activation_bits = 4;
  Compare(job, plan, data, 3);
  plan.block_memory_policy = {"recompute", "attention"};
  Compare(job, plan, data, 3);
  plan = TinyPlan("fp8", 2);
  plan.activation_bits = 8;
  Compare(job, plan, data, 2);
}

TEST_F(TrainerOnCuda, SparseTrainingFollowsTheCpu) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.train.sparsity = {.method = "masked_decay", .decay = 1e-2, .mask_interval = 2};
  Compare(job, TinyPlan("fp32", 2), data, 4);
  job.train.sparsity.method = "sr_ste";
  Compare(job, TinyPlan("fp32", 1, 2), data, 3);
  // Roundings that differ would choose other masks, and draw other rows.
  job.train.sparsity.mask_interval = 100;
  job.train.sparsity.gradient_estimate = "exact";
  Compare(job, TinyPlan("bf16", 2), data, 3);
  JobSpec other = job;
  other.model.activation = "squared_relu";
  Compare(other, TinyPlan("bf16", 2), data, 2);
  other = job;
  other.model.family = "llama";
  other.model.mlp_width = 64;  // whole parts of gates
  Compare(other, TinyPlan("bf16", 2), data, 2);
  job.train.sparsity.method = "s_ste";
  Compare(job, TinyPlan("bf16", 2), data, 2);
  job.train.sparsity = {};
  job.train.pruning.method = "rigl";
  job.train.pruning.interval = 2;
  Compare(job, TinyPlan("fp32", 2), data, 4);
}

// Through steps that choose and exchange weights, in the products of both.
TEST_F(TrainerOnCuda, PrunedProductsByCusparseFollowTheCpu) {
  if (const auto library = kernels::cuda::LoadCusparse(); !library.ok()) {
    GTEST_SKIP() << library.status().ToString();
  }
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.train.pruning.method = "rigl";
  job.train.pruning.interval = 2;
  job.train.pruning.products = "sparse";
  Compare(job, TinyPlan("fp32", 2), data, 4);
  job.model.family = "llama";
  job.train.pruning.method = "random";
  Compare(job, TinyPlan("fp32", 2), data, 2);
}

TEST_F(TrainerOnCuda, EveryFamilyFollowsTheCpu) {
  RandomTokens tokens(50, 16);
  JobSpec llama = JobOnCuda(2);
  llama.model.family = "llama";
  llama.model.kv_heads = 1;
  Compare(llama, TinyPlan("fp32", 2), tokens, 2);

  JobSpec mixtral = llama;
  mixtral.model.experts = 4;
  mixtral.model.expert_capacity = 1;
  Compare(mixtral, TinyPlan("fp32", 2), tokens, 3);
  mixtral.model.expert_capacity = 0;
  Plan recomputed = TinyPlan("bf16", 1, 2);
  recomputed.block_memory_policy = {"recompute", "keep"};
  Compare(mixtral, recomputed, tokens, 2);

  JobSpec bert = JobOnCuda(2);
  bert.model.family = "bert";
  bert.model.dropout = 0.1;
  RandomMasked masked(50, 16, 0.3);
  Compare(bert, TinyPlan("fp32", 2), masked, 2);
  bert.model.head = "classification";
  bert.model.classes = 3;
  RandomLabelled labelled(50, 16, 3);
  Compare(bert, TinyPlan("bf16", 2), labelled, 2);

  JobSpec vit = JobOnCuda(2);
  vit.model.family = "vit";
  vit.model.vocab_size = 0;
  vit.model.context = 0;
  vit.model.image_size = 8;
  vit.model.patch_size = 4;
  vit.model.image_channels = 3;
  vit.model.classes = 3;
  NoiseImages images(vit.model);
  Compare(vit, TinyPlan("fp32", 2), images, 2);
}

TEST_F(TrainerOnCuda, EveryOptimizerFollowsTheCpu) {
  RandomTokens data(50, 16);
  for (const char* name :
       {"sgd", "lars", "adam", "lamb", "lion", "adafactor", "muon", "schedule_free_adamw"}) {
    SCOPED_TRACE(name);
    JobSpec job = JobOnCuda(2);
    job.model.layers = 1;
    job.optimizer.name = name;
    job.schedule.kind = "constant";  // as schedule-free averages want it
    Compare(job, TinyPlan("fp32", 2), data, 3);
  }
}

TEST_F(TrainerOnCuda, AveragesStandForTheWeightsInEvaluation) {
  RandomTokens data(50, 16);
  for (const char* kind : {"ema", "lawa"}) {
    for (const char* precision : {"fp32", "bf16_pure"}) {
      SCOPED_TRACE(std::string(kind) + " " + precision);
      JobSpec job = JobOnCuda(2);
      job.model.layers = 1;
      job.train.averaging = {.kind = kind, .decay = 0.5, .every_steps = 1, .window = 2};
      Compare(job, TinyPlan(precision, 2), data, 3);
    }
  }
}

TEST_F(TrainerOnCuda, AnOverflowLowersTheLossScaleAndSkipsTheUpdate) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  job.train.loss_scaling.initial = 0x1p24;
  int64_t overflows = 0;
  Compare(job, TinyPlan("fp16", 2), data, 6, [&](const StepReport& report) {
    overflows += report.overflow ? 1 : 0;
    EXPECT_EQ(report.overflow, report.skipped);
  });
  EXPECT_GT(overflows, 0);
  EXPECT_LT(overflows, 6);
}

TEST_F(TrainerOnCuda, ASkippedUpdateLeavesTheStateAsItIs) {
  RandomTokens data(50, 16);
  for (const char* name : {"adamw", "schedule_free_adamw"}) {
    JobSpec job = JobOnCuda(2);
    job.model.layers = 1;
    job.optimizer.name = name;
    job.schedule.kind = "constant";
    if (name == std::string("adamw")) job.train.averaging = {.kind = "lawa", .every_steps = 1};
    DeviceRun run(job, TinyPlan("fp32", 2), data, kCudaDevice);
    run.Step();
    const auto before = run.State();
    ASSERT_TRUE(SetFailpoints("trainer.loss=error").ok());
    EXPECT_TRUE(run.Step().skipped);
    ASSERT_TRUE(SetFailpoints("").ok());
    EXPECT_EQ(run.State(), before);
    EXPECT_EQ(run.trainer->counters().skipped_steps, 1);
  }
}

TEST_F(TrainerOnCuda, OverParameterisedAndNoiseMeasuringTrainingFollowsTheCpu) {
  RandomTokens data(50, 16);
  for (const char* kind : {"linear_expansion", "majority_kernels", "branches"}) {
    SCOPED_TRACE(kind);
    JobSpec job = JobOnCuda(4);
    job.model.layers = 1;
    job.model.over_parameterization.kind = kind;
    job.train.gradient_noise_scale = true;
    Compare(job, TinyPlan("fp32", 2, 2), data, 2);
  }
}

TEST_F(TrainerOnCuda, NetworksWithinNetworksAndLazyAdaptersFollowTheCpu) {
  RandomTokens data(50, 16);
  JobSpec cores = JobOnCuda(4), nested = JobOnCuda(4), adapters = JobOnCuda(4);
  cores.model.low_rank_core.rank = 4;
  nested.train.nested_model = {.layers = 1, .mlp_width = 40};
  adapters.train.sparsity = {.method = "slope", .adapter_rank = 4, .adapter_share = 1};
  for (const JobSpec& job : {cores, nested, adapters}) {
    Compare(job, TinyPlan("fp32", 2, 2), data, 3);
  }
}

TEST_F(TrainerOnCuda, MasksOfGrowthFollowTheCpu) {
  RandomTokens data(50, 16);
  for (const char* family : {"gpt2", "llama"}) {
    JobSpec job = JobOnCuda();
    job.model.family = family;
    MaskedGrowth growth{job.model, {}};
    growth.before.layers = 1;
    growth.before.width /= 2;
    growth.before.heads /= 2;
    growth.growth.method = "msg";
    growth.growth.ramp_steps = 3;
    SetPhaseGrowth(growth, job);
    Plan plan = TinyPlan("fp32", 2, 2);
    plan.block_memory_policy = {"recompute", "keep"};
    Compare(job, plan, data, 5);
    Compare(job, TinyPlan("bf16"), data, 5);
  }
}

// Three steps with updates of their own, and then recorded ones.
TEST_F(TrainerOnCuda, UpdatesOfWhatGrowthHasAddedFollowTheCpu) {
  RandomTokens data(50, 16);
  for (const char* optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    JobSpec job = JobOnCuda();
    job.optimizer.name = optimizer;
    PhaseGrowth growth{job.model, {}};
    growth.before.width /= 2;
    growth.before.heads /= 2;
    growth.growth.method = "sparkling";
    growth.growth.rewarm_steps = 2;
    SetPhaseGrowth(growth, job);
    Compare(job, TinyPlan("fp32", 2, 2), data, 6);
    if (optimizer == std::string("adamw")) Compare(job, TinyPlan("bf16"), data, 6);
  }
}

TEST_F(TrainerOnCuda, TrainingOfStructuredMatricesFollowsTheCpu) {
  RandomTokens data(50, 16);
  for (const char* kind : {"monarch", "pixelfly"}) {
    SCOPED_TRACE(kind);
    Compare(StructuredJobOnCuda(kind, 4), TinyPlan("fp32", 2, 2), data, 2);
  }
}

TEST_F(TrainerOnCuda, EveryPeftMethodFollowsTheCpu) {
  RandomTokens data(50, 16);
  for (const std::string_view method : PeftMethods()) {
    if (method == "none") continue;
    SCOPED_TRACE(method);
    JobSpec job = JobOnCuda(2);
    job.train.sequence_length = 16;
    job.model.family = "llama";
    job.model.layers = 1;
    job.model.peft.method = method;
    if (method == "oft") job.model.peft.oft_block_size = 4;
    if (method == "prompt" || method == "p_tuning" || method == "prefix") {
      job.model.peft.num_virtual_tokens = 4;
      job.model.context = 20;
    }
    if (method == "selective") job.model.peft.modules_to_save = {"*norm*"};
    Compare(job, TinyPlan("fp32", 2), data, 3);
  }
}

TEST_F(TrainerOnCuda, VirtualTokensOfPaddedRowsFollowTheCpu) {
  PaddedDocuments documents(50, 16, kPaddedLengthMultiple);
  for (const char* method : {"prompt", "prefix"}) {
    for (const char* family : {"gpt2", "llama"}) {
      SCOPED_TRACE(std::string(method) + " " + family);
      JobSpec job = JobOnCuda(4);
      job.data.batching = "pad_dynamic";
      job.train.sequence_length = 16;
      job.model.family = family;
      job.model.layers = 1;
      job.model.context = 20;
      job.model.peft.method = method;
      job.model.peft.num_virtual_tokens = 4;
      Compare(job, TinyPlan("fp32", 2, 2), documents, 3);
    }
  }
}

/// LoRA on every matrix of one block.
JobSpec LoraJob(int64_t global_batch) {
  JobSpec job = JobOnCuda(global_batch);
  job.model.family = "llama";
  job.model.layers = 1;
  job.model.peft.method = "lora";
  job.model.peft.rank = 4;
  job.model.peft.target_modules = {"all-linear"};
  return job;
}

TEST_F(TrainerOnCuda, VariantsOfLoraFollowTheCpu) {
  RandomTokens data(50, 16);
  JobSpec lora = LoraJob(4);
  Compare(lora, TinyPlan("bf16", 2, 2), data, 3);
  lora.model.peft.dropout = 0.1;
  Compare(lora, TinyPlan("fp32", 2, 2), data, 3);
  lora.model.peft.use_dora = true;
  Compare(lora, TinyPlan("fp32", 2, 2), data, 3);
  lora.model.peft.dropout = 0;
  Compare(lora, TinyPlan("fp32", 2, 2), data, 3);
}

TEST_F(TrainerOnCuda, QuantisedWeightsFollowTheCpu) {
  RandomTokens data(50, 16);
  for (const char* type : {"nf4", "fp4"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(type + std::string(" in ") + precision);
      JobSpec job = LoraJob(2);
      job.model.weight_quantization = {.type = type, .block_size = 32};
      Compare(job, TinyPlan(precision, 2), data, 3);
    }
  }
}

TEST_F(TrainerOnCuda, AStateGoesFromDeviceToDeviceBitForBit) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.dropout = 0.1;
  const Plan plan = TinyPlan("bf16", 2);
  DeviceRun cuda(job, plan, data, kCudaDevice), again(job, plan, data, kCudaDevice),
      cpu(job, plan, data, kCpuDevice);
  for (int step = 0; step < 2; ++step) cuda.Step();
  const auto state = cuda.State();

  const std::string folder = MakeTestFolder();
  const auto move = [&](DeviceRun& from, DeviceRun& to, int64_t epoch) {
    const std::string run_dir = folder + "/" + std::to_string(epoch);
    ASSERT_TRUE(Env::Posix().CreateDirs(run_dir).ok());
    auto writer = CheckpointWriter::Open({&Env::Posix(), run_dir, 1, 1, nullptr});
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    CheckpointManifest manifest = TestManifest(2);
    manifest.plan = plan;
    ASSERT_TRUE((*writer)->Save(manifest, from.trainer->StateTensors(), from.context.stream).ok());
    ASSERT_EQ((*writer)->Wait().ToString(), "OK");
    auto latest = LatestVerified(Env::Posix(), run_dir);
    ASSERT_TRUE(latest.ok() && latest->latest);
    ASSERT_TRUE(LoadTensors(Env::Posix(), latest->latest->path, latest->latest->manifest,
                            to.trainer->StateTensors(), ExtraTensors::kRefuse, to.context.stream)
                    .ok());
    ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
  };
  move(cuda, cpu, 1);
  EXPECT_EQ(cpu.State(), state);
  move(cpu, again, 2);
  EXPECT_EQ(again.State(), state);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(again.Step().loss, cuda.Step().loss);
  }
  EXPECT_EQ(again.State(), cuda.State());
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST_F(TrainerOnCuda, BatchesThatWereFetchedInVainAreDropped) {
  RandomTokens data(50, 16);
  const JobSpec job = JobOnCuda(2);
  const Plan plan = TinyPlan("fp32", 1, 2);
  DeviceRun cpu(job, plan, data, kCpuDevice), cuda(job, plan, data, kCudaDevice);
  for (int64_t offset : {0, 5}) {
    for (DeviceRun* run : {&cpu, &cuda}) {
      TrainCounters counters = run->trainer->counters();
      counters.data_offset = offset;
      ASSERT_TRUE(run->trainer->Restored(counters).ok());
    }
    for (int step = 0; step < 2; ++step) {
      EXPECT_NEAR(cuda.Step().loss / cpu.Step().loss, 1, 1e-4) << offset;
    }
  }
}

TEST_F(TrainerOnCuda, TextIsGeneratedAsOnTheCpu) {
  std::vector<int32_t> texts[2];
  for (const char* family : {"gpt2", "llama"}) {
    for (const Device& where : {kCpuDevice, kCudaDevice}) {
      auto device = ComputeDevice::Open({.device = where, .chunk_bytes = size_t{1} << 20});
      ASSERT_TRUE(device.ok());
      Context context = (*device)->NewContext();
      ModelSpec spec = TinyModel();
      spec.family = family;
      auto model = NewLanguageModel(context, spec, {&PrecisionOf("fp32"), false, {}});
      ASSERT_TRUE(model.ok());
      ASSERT_TRUE((*model)->parameters().Initialize(3).ok());
      ASSERT_TRUE((*model)->Pack(context).ok());
      auto text = Generate(context, **model, {1, 2, 3}, {{.temperature = 0.0}, 5, -1, {}});
      ASSERT_TRUE(text.ok()) << text.status().ToString();
      texts[where.type == DeviceType::kCuda ? 1 : 0] = *text;
    }
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0].size(), 5u);
  }
}

}  // namespace
}  // namespace weft::engine
