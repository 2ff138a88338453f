// Parameters in a file against parameters on the host: the same bits, as
// many bytes in each tier as the planner says, and errors of the file that say which it was.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/gradient_bytes.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

Plan FilePlan(const std::string& precision, const std::string& optimizer = "nvme",
              int64_t micro_batch = 2, int64_t accumulation = 2) {
  Plan plan = TinyPlan(precision, micro_batch, accumulation);
  plan.offload_optimizer = optimizer;
  plan.offload_parameters = "nvme";
  return plan;
}

JobSpec FourBlocks() {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.train.log_every_steps = 2;
  return job;
}

TEST(ParametersInFileTest, HaveTheBitsOfPlainTrainingInEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    for (const char* optimizer : {"host", "nvme"}) {
      SCOPED_TRACE(std::string(precision) + " " + optimizer);
      ExpectSame(FourBlocks(), FilePlan(precision, optimizer), 3);
    }
    ExpectSame(LlamaJob(), FilePlan(precision, "nvme", 4, 1), 2);
  }
}

TEST(ParametersInFileTest, HaveThemWithEveryPolicyAndWithSharedAndFrozenBlocks) {
  JobSpec job = FourBlocks();
  job.model.dropout = 0.1;
  job.train.gradient_noise_scale = true;
  Plan plan = FilePlan("bf16");
  plan.offload_activations = "host";
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

/// Large enough for blocks of a file not to matter.
JobSpec WideJob(const std::string& family) {
  JobSpec job = FourBlocks();
  job.model.family = family;
  job.model.untied_classifier = family == "llama";
  job.model.layers = 6;
  job.model.width = 128;
  job.model.vocab_size = 700;  // no size of a block's
  job.model.context = 32;
  job.train.log_every_steps = 100;  // for which all is read
  return job;
}

TEST(ParametersInFileTest, BytesOfEachTierAreThoseOfThePlanner) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* precision : {"fp32", "bf16_pure"}) {
      SCOPED_TRACE(std::string(family) + " " + precision);
      const JobSpec job = WideJob(family);
      Plan plan = FilePlan(precision);
      plan.bucket_bytes = BlockGradientBytes(job.model);
      Training training(job, plan, true);
      ASSERT_TRUE(training.trainer->Step().ok());
      ASSERT_TRUE(training.trainer->FinishUpdates().ok());
      const int64_t before = training.context.host->files().moved_bytes;
      ASSERT_TRUE(training.trainer->Step().ok());
      const auto report = training.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      ASSERT_TRUE(training.trainer->FinishUpdates().ok());
      const int64_t moved = training.context.host->files().moved_bytes - before;

      const MemoryInputs inputs =
          MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
      const MemoryBreakdown all = PredictMemory(inputs), device = PredictDeviceTier(inputs);
      const MemoryBreakdown host = training.context.host->allocator().Peaks();
      ExpectPredictedBytes("device values", device.parameters_bytes,
                           report->device_memory.parameters_bytes);
      ExpectPredictedBytes("host values", all.parameters_bytes - device.parameters_bytes,
                           host.parameters_bytes);
      ExpectPredictedBytes("host gradients", all.gradients_bytes - device.gradients_bytes,
                           host.gradients_bytes);
      ExpectPredictedBytes("host moments", all.optimizer_bytes, host.optimizer_bytes);
      EXPECT_LE(report->device_memory.gradients_bytes, device.gradients_bytes * 101 / 100);
      ExpectPredictedBytes("file", FileBytes(inputs), report->tiers.file_bytes);
      // Gradients of the first micro-batch are written, read, and written with those of the second,
      // and are read for the update, which reads and writes values and moments. That of the first
      // step leaves the values to the forward pass that overlaps with it and reads a table that
      // classifies once more.
      const StreamedBytes read = FiledWeightBytes(inputs);
      const int64_t gradients_file = FiledGradientBytes(inputs.shape, plan.bucket_bytes).file;
      const int64_t values_file =
          FiledValueBytes(inputs.shape, ElementBytes(inputs.precision->matrices)).file;
      const int64_t moments_file = FileBytes(inputs) - gradients_file - values_file;
      const int64_t passes = 2 * (read.forward + read.backward);
      const int64_t update = 2 * (values_file + moments_file);
      ExpectPredictedBytes("moved through files",
                           2 * (passes + 4 * gradients_file + update) - values_file, moved);
      // Values of four blocks are all that is there of eight units.
      EXPECT_LT(host.parameters_bytes, 4 * training.model->parameters().ElementCount() * 3 / 4);
    }
  }
}

/// Parameters, gradients and moments are sixteen bytes a number: as much is in the file, and a
/// tenth of it on the device and the host together.
TEST(ParametersInFileTest, AModelOfTenTimesBothTiersTrainsWithTheBitsOfPlainTraining) {
  JobSpec job = TinyJob(1);
  job.model.width = 64;
  job.model.layers = 56;
  Plan plan = FilePlan("fp32", "nvme", 1, 1);
  plan.offload_activations = "host";
  plan.block_memory_policy.assign(56, "recompute");
  Training whole(job, plan, false), filed(job, plan, true);
  const int64_t state = 16 * whole.model->parameters().ElementCount();
  for (int i = 0; i < 3; ++i) {
    const auto a = whole.trainer->Step(), b = filed.trainer->Step();
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
    EXPECT_EQ(a->loss, b->loss);
    EXPECT_GE(b->tiers.file_bytes, state);
    EXPECT_GE(state, 10 * (b->tiers.device_bytes + b->tiers.host_bytes));
  }
  EXPECT_EQ(Differing(whole.State(), filed.State()), "");
}

TEST(ParametersInFileTest, AStateGoesOnFromEveryFormInEveryOther) {
  const JobSpec job = FourBlocks();
  const auto make = [&](const std::string& parameters) {
    Plan plan = FilePlan("bf16", parameters == "none" ? "none" : "nvme");
    plan.offload_parameters = parameters;
    auto training = std::make_unique<Training>(job, plan, parameters != "none");
    return training;
  };
  const std::string folder = ::testing::TempDir() + "weft_filed";
  ASSERT_TRUE(Env::Posix().CreateDirs(folder).ok());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"nvme", "none"}, {"none", "nvme"}, {"host", "nvme"}, {"nvme", "nvme"}}) {
    SCOPED_TRACE(from + " to " + to);
    const auto a = make(from), b = make(to);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(a->trainer->Step().ok());
    // The other one has a state of its own, which goes.
    ASSERT_TRUE(b->trainer->Step().ok());
    ASSERT_TRUE(a->trainer->FinishUpdates().ok() && b->trainer->FinishUpdates().ok());
    const auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, a->trainer->StateTensors());
    ASSERT_TRUE(file.ok()) << file.status().message();
    CheckpointManifest manifest;
    manifest.files = {*file};
    const Status loaded = LoadTensors(Env::Posix(), folder, manifest, b->trainer->StateTensors(),
                                      ExtraTensors::kRefuse);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    ASSERT_TRUE(b->trainer->Restored(a->trainer->counters()).ok());
    for (int i = 0; i < 2; ++i) {
      const auto one = a->trainer->Step(), other = b->trainer->Step();
      ASSERT_TRUE(one.ok() && other.ok()) << one.status().message() << other.status().message();
      EXPECT_EQ(one->loss, other->loss);
    }
    EXPECT_EQ(Differing(a->State(), b->State()), "");
    EXPECT_TRUE(*b->trainer->WeightsAreFinite());
  }
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST(ParametersInFileTest, AFileThatWasChangedOrCutIsAnErrorThatNamesIt) {
  enum class Damage : uint8_t { kCut, kFirst, kOverlappedWithPass };
  for (const Damage damage : {Damage::kCut, Damage::kFirst, Damage::kOverlappedWithPass}) {
    SCOPED_TRACE(static_cast<int>(damage));
    Training training(FourBlocks(), FilePlan("fp32", "host"), true);
    ASSERT_TRUE(training.trainer->Step().ok());
    // An update goes on where the next pass does, so that it is yet to come to the last unit.
    const bool beside = damage == Damage::kOverlappedWithPass;
    if (!beside) {
      ASSERT_TRUE(training.trainer->FinishUpdates().ok());
    }
    AsyncFile& file = training.model->parameters().file()->values().file();
    const bool cut = damage == Damage::kCut;
    if (cut) {
      ASSERT_EQ(ftruncate(file.descriptor(), 4096), 0);
    } else {
      const off_t at = beside ? lseek(file.descriptor(), 0, SEEK_END) - 4096 : 4096;
      auto* block = static_cast<char*>(std::aligned_alloc(4096, 4096));
      ASSERT_EQ(pread(file.descriptor(), block, 4096, at), 4096);
      block[5] ^= 1;
      ASSERT_EQ(pwrite(file.descriptor(), block, 4096, at), 4096);
      std::free(block);
    }
    const Status status = training.trainer->Step().status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(file.path()));
    EXPECT_THAT(status.message(), HasSubstr(cut ? "ends too early" : "is not what was written"));
    EXPECT_FALSE(training.trainer->Step().ok()) << "it does not go on with what it has";
  }
}

TEST(ParametersInFileTest, ADiskWithoutRoomIsReportedAtTheStart) {
  // A write past the limit ends a process that does not say otherwise.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {}, small = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = {.rlim_cur = 8192, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Training training;
  const Status made = training.Make(FourBlocks(), FilePlan("fp32", "host"), true);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(made.code(), StatusCode::kExhausted);
  EXPECT_THAT(made.message(), HasSubstr(::testing::TempDir()));
  EXPECT_THAT(made.message(), HasSubstr("resources.offload_directory"));
}

}  // namespace
}  // namespace weft::engine
