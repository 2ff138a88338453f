#include "worker/trainer/trained_weights.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::trainer {
namespace {

using namespace engine;  // NOLINT(google-build-using-namespace)

// Trains for `steps`, saves, and compares what LoadTrainedWeights reads with what an evaluation of
// the trainer would use.
void ExpectEvaluatedWeights(const JobSpec& job, int64_t steps) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  for (int64_t step = 0; step < steps; ++step) run.Step();
  const std::string folder = ::testing::TempDir() + "/trained_weights";
  std::filesystem::create_directories(folder);
  CheckpointManifest manifest;
  manifest.job = job;
  manifest.updates = run.trainer->counters().updates;
  manifest.step = run.trainer->counters().step;
  auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, run.trainer->StateTensors());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  manifest.files = {*file};

  TinyRun loaded(job.model, ModelOptionsOf(TinyPlan("fp32")));
  const Status status =
      LoadTrainedWeights(Env::Posix(), folder, manifest, loaded.model->parameters());
  ASSERT_TRUE(status.ok()) << status.ToString();
  std::filesystem::remove_all(folder);

  // The model with these weights has the loss that the trainer evaluates to.
  const auto report = run.trainer->Evaluate();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_TRUE(loaded.model->Pack(loaded.context).ok());
  const auto batch = tokens.Get(0, 0, 4);
  ASSERT_TRUE(batch.ok());
  EXPECT_NEAR(loaded.Loss(*batch) / 64, report->loss, 1e-6);
}

TEST(TrainedWeightsTest, AreThoseThatAnEvaluationUses) {
  JobSpec job = TinyJob(4);
  job.train.eval_sequences = 4;
  job.schedule.kind = "constant";
  job.optimizer.learning_rate = 0.05;
  ExpectEvaluatedWeights(job, 3);
  job.model.freeze = {"*.wpe.weight"};
  job.train.averaging = {.kind = "ema", .decay = 0.5, .every_steps = 2};
  ExpectEvaluatedWeights(job, 1);  // before the first average
  ExpectEvaluatedWeights(job, 7);
  job.train.averaging = {.kind = "lawa", .every_steps = 1, .window = 3};
  ExpectEvaluatedWeights(job, 2);
  ExpectEvaluatedWeights(job, 7);
  job.train.averaging.kind = "none";
  job.model.freeze = {"*.h.0.mlp.*"};
  job.train.steps = 8;
  job.train.sparsity = {.method = "masked_decay", .mask_interval = 2, .dense_share = 0.25};
  ExpectEvaluatedWeights(job, 5);  // under masks
  ExpectEvaluatedWeights(job, 7);  // dense at the end
  for (const char* method : {"s_ste", "slope", "sr_ste", "masked_decay"}) {
    job.train.sparsity = {.method = method, .mask_interval = 2, .dense_share = 0};
    ExpectEvaluatedWeights(job, 8);  // under masks at the end, too
  }
  job.train.sparsity = {};
  job.optimizer.name = "schedule_free_adamw";
  ExpectEvaluatedWeights(job, 5);
}

TEST(TrainedWeightsTest, ExportsOfSparseWeightsHaveTheirAdapters) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    JobSpec job = TinyJob(4);
    job.model.family = family;
    job.train.eval_sequences = 4;
    job.train.steps = 8;
    job.train.sparsity = {.method = "slope", .adapter_rank = 3, .adapter_share = 0.5};
    job.optimizer.learning_rate = 0.02;
    RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    for (int step = 0; step < 8; ++step) run.Step();
    const double loss = run.trainer->Evaluate()->loss;
    const std::string folder = ::testing::TempDir() + "/sparse_adapters";
    std::filesystem::create_directories(folder);
    CheckpointManifest manifest;
    manifest.job = job;
    manifest.updates = manifest.step = 8;
    auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, run.trainer->StateTensors());
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    manifest.files = {*file};

    TinyRun loaded(job.model, ModelOptionsOf(TinyPlan("fp32"), job.train));
    ASSERT_TRUE(
        LoadTrainedWeights(Env::Posix(), folder, manifest, loaded.model->parameters()).ok());
    ASSERT_TRUE(loaded.model->Pack(loaded.context).ok());
    const auto batch = tokens.Get(0, 0, 4);
    ASSERT_TRUE(batch.ok());
    EXPECT_NEAR(loaded.Loss(*batch) / 64, loss, 1e-5);

    const std::string exported = folder + "/export";
    ASSERT_TRUE(ExportWeights(Env::Posix(), exported, *loaded.model, {}).ok());
    TinyRun plain(job.model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), exported, *plain.model).ok());
    ASSERT_TRUE(plain.model->Pack(plain.context).ok());
    EXPECT_NEAR(plain.Loss(*batch) / 64, loss, 1e-5);
    ExportOptions compressed;
    compressed.compresses = true;
    EXPECT_FALSE(
        ExportWeights(Env::Posix(), folder + "/compressed", *loaded.model, compressed).ok())
        << "merged weights are dense";
    std::filesystem::remove_all(folder);
  }
}

TEST(TrainedWeightsTest, OfJobsThatWereTrainedTogetherEachIsReadByItself) {
  JobSpec job = TinyJob(4);
  job.model.peft.method = "lora";
  job.model.peft.adapters.resize(2);
  job.model.peft.adapters[0].name = "one";
  job.model.peft.adapters[1].name = "two";
  job.schedule.kind = "constant";
  job.optimizer.learning_rate = 0.05;
  job.train.averaging = {.kind = "ema", .decay = 0.5, .every_steps = 1};
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (uint64_t seed : {7, 8}) {
    sources.push_back(
        std::make_unique<RandomTokens>(TinyModel().vocab_size, TinyModel().context, seed));
  }
  JointBatches tokens(std::move(sources), JointBatches::AtEnd::kNone);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  for (int i = 0; i < 3; ++i) run.Step();
  const std::string folder = ::testing::TempDir() + "/joint_weights";
  std::filesystem::create_directories(folder);
  CheckpointManifest manifest;
  manifest.job = job;
  manifest.updates = manifest.step = 3;
  auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, run.trainer->StateTensors());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  manifest.files = {*file};

  TinyRun all(job.model, ModelOptionsOf(TinyPlan("fp32")));
  ASSERT_TRUE(LoadTrainedWeights(Env::Posix(), folder, manifest, all.model->parameters()).ok());
  for (size_t part = 0; part < 2; ++part) {
    const std::map<std::string, std::string> names = NamesOfPart(job, part);
    EXPECT_EQ(names.at("transformer.h.1.attn.c_attn.lora_B.weight"),
              std::string("transformer.h.1.attn.c_attn.lora_B.") + (part == 0 ? "one" : "two") +
                  ".weight");
    EXPECT_EQ(names.size(), 4) << "A and B of two layers";
    TinyRun own(JointJobs(job)[part].model, ModelOptionsOf(TinyPlan("fp32")));
    const Status status =
        LoadTrainedWeights(Env::Posix(), folder, manifest, own.model->parameters(), names);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const ParameterSet &parameters = own.model->parameters(), &joint = all.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const auto other = names.find(parameters[i].name);
      const auto from = joint.Find(other == names.end() ? parameters[i].name : other->second);
      ASSERT_TRUE(from.ok()) << parameters[i].name;
      EXPECT_EQ(ValuesOf(parameters.value(i)), ValuesOf(joint.value(*from))) << parameters[i].name;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weft::trainer
