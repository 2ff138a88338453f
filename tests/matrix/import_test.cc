// Weights of a Hugging Face folder on ranks that each have a part of them, in files of their own
// too: those that one rank reads. Checkpoints without those that stay as they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/base_tensors.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "common/model/parameter_list.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/trained_weights.h"

namespace weft::testing {
namespace {

using Values = std::vector<std::vector<float>>;  // by parameter

class ImportOnRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_import_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// A job that starts from a folder of this family, and leaves weights as they are.
  static JobSpec JobFrom(const std::string& family, const PeftSpec& peft = {}) {
    JobSpec job = JobOf(Combination(Axes().size(), 0));
    job.model = ModelSpec();
    job.model.import_path = job.data.tokenizer.path =
        WEFT_SOURCE_DIR "/tests/parity/testdata/" + family + "/start";
    job.optimizer.learning_rate = 1e-30;
    const Status resolved = ResolveImportedModel(Env::Posix(), job);
    EXPECT_TRUE(resolved.ok()) << resolved.message();
    job.model.peft = peft;
    return job;
  }

  /// How far what `job` saves after a step is at most from `expected`, the values of `whole`.
  void ExpectSaved(const JobSpec& job, engine::TinyRun& whole, const Values& expected, float most) {
    const std::string run = root_ + "/" + std::to_string(++runs_);
    const auto training = Train(job, run, 1);
    ASSERT_TRUE(training.ok()) << training.status().message();
    const auto saved = engine::LatestVerified(Env::Posix(), run);
    ASSERT_TRUE(saved.ok() && saved->latest);
    const Status loaded = trainer::LoadTrainedWeights(
        Env::Posix(), saved->latest->path, saved->latest->manifest, whole.model->parameters());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    const Values values = engine::ValuesOf(whole.model->parameters());
    for (size_t p = 0; p < expected.size(); ++p) {
      float off = 0;
      for (size_t i = 0; i < expected[p].size(); ++i) {
        off = std::max(off, std::fabs(values[p][i] - expected[p][i]));
      }
      EXPECT_LT(off, most) << whole.model->parameters()[static_cast<int64_t>(p)].name;
    }
  }

  std::string root_;
  int runs_ = 0;
};

struct Shares {
  int64_t zero_stage, tensor, pipeline;
};

std::string NameOf(const Shares& way) {
  return "zero_stage " + std::to_string(way.zero_stage) + ", tensor " + std::to_string(way.tensor) +
         ", pipeline " + std::to_string(way.pipeline);
}

JobSpec OnMesh(JobSpec job, const Shares& way) {
  ResourceSpec& resources = job.resources;
  resources.tensor_parallel = way.tensor;
  resources.pipeline_parallel = way.pipeline;
  resources.zero_stage = way.zero_stage;
  resources.ranks = way.tensor * way.pipeline * (way.zero_stage > 0 ? 2 : 1);
  return job;
}

engine::ModelOptions Fp32() {
  engine::ModelOptions options;
  options.precision = &kFp32Precision;
  return options;
}

TEST_F(ImportOnRanks, HasTheWeightsThatOneRankReads) {
  for (const std::string family : {"gpt2", "llama"}) {
    const JobSpec plain = JobFrom(family);
    engine::TinyRun whole(plain.model, Fp32());
    ASSERT_TRUE(engine::ImportWeights(Env::Posix(), plain.model.import_path, *whole.model).ok());
    const Values expected = engine::ValuesOf(whole.model->parameters());
    for (const Shares& way : {Shares{1, 1, 1}, Shares{2, 1, 1}, Shares{3, 1, 1}, Shares{0, 2, 1},
                              Shares{3, 2, 1}, Shares{0, 1, 2}}) {
      for (const std::string where : {"none", "nvme"}) {
        SCOPED_TRACE(family + ", " + NameOf(way) + ", parameters in " + where);
        JobSpec job = OnMesh(plain, way);
        if (where == "nvme") {
          job.resources.offload_optimizer = job.resources.offload_parameters = where;
          job.resources.offload_directory = root_;
        }
        ExpectSaved(job, whole, expected, 1e-20f);
      }
    }
  }
}

// Which each rank has a part of, or none of before it is brought.
TEST_F(ImportOnRanks, AdaptersStartFromWholeWeights) {
  PeftSpec pissa, dora, prompt;
  pissa.method = dora.method = "lora";
  pissa.rank = dora.rank = 4;
  pissa.init = "pissa";
  dora.use_dora = true;
  pissa.target_modules = dora.target_modules = {"all-linear"};
  prompt.method = "prompt";
  prompt.num_virtual_tokens = 2;
  for (const std::string family : {"gpt2", "llama"}) {
    for (const PeftSpec& peft : {pissa, dora, prompt}) {
      JobSpec plain = JobFrom(family, peft);
      if (peft.method == "prompt") plain.train.sequence_length = plain.model.context - 2;
      engine::TinyRun whole(plain.model, Fp32());
      ASSERT_TRUE(engine::ImportWeights(Env::Posix(), plain.model.import_path, *whole.model).ok());
      const Values expected = engine::ValuesOf(whole.model->parameters());
      for (const Shares& way :
           {Shares{1, 1, 1}, Shares{3, 1, 1}, Shares{0, 2, 1}, Shares{3, 2, 1}, Shares{0, 1, 2}}) {
        SCOPED_TRACE(family + " " + peft.method + " " + peft.init + ", " + NameOf(way));
        ExpectSaved(OnMesh(plain, way), whole, expected, 1e-6f);
      }
    }
  }
}

PeftSpec Lora() {
  PeftSpec peft;
  peft.method = "lora";
  peft.rank = 4;
  peft.target_modules = {"all-linear"};
  return peft;
}

int64_t TrainedNumbers(const ModelSpec& model) {
  int64_t numbers = 0;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.frozen) numbers += parameter.Elements();
  }
  return numbers;
}

/// Trainings of adapters of the network in `base_`, a folder of their own.
class FrozenBase : public ImportOnRanks {
 protected:
  void SetUp() override {
    ImportOnRanks::SetUp();
    base_ = root_ + "/base";
    std::filesystem::copy(WEFT_SOURCE_DIR "/tests/parity/testdata/llama/start", base_);
    std::filesystem::permissions(base_ + "/model.safetensors", std::filesystem::perms::owner_all);
  }

  JobSpec AdapterJob(const PeftSpec& peft) const {
    JobSpec job = JobFrom("llama", peft);
    job.model.import_path = base_;
    job.optimizer.learning_rate = 1e-2;
    return job;
  }

  std::vector<double> Losses(const JobSpec& job, const std::string& run, int64_t last_step) const {
    const auto training = Train(job, root_ + "/" + run, last_step);
    EXPECT_TRUE(training.ok()) << training.status().message();
    return training.ok() ? training->losses : std::vector<double>();
  }

  engine::LatestCheckpoint Newest(const std::string& run) const {
    const auto saved = engine::LatestVerified(Env::Posix(), root_ + "/" + run);
    EXPECT_TRUE(saved.ok() && saved->latest);
    return saved.ok() && saved->latest ? *saved->latest : engine::LatestCheckpoint();
  }

  /// Bytes of the tensors in the newest checkpoint.
  int64_t TensorBytes(const std::string& run) const {
    const engine::LatestCheckpoint saved = Newest(run);
    int64_t bytes = 0;
    for (const engine::CheckpointFile& file : saved.manifest.files) {
      const auto tensors = SafetensorsFile::Open(Env::Posix(), JoinPath(saved.path, file.name));
      EXPECT_TRUE(tensors.ok());
      if (!tensors.ok()) continue;
      for (const SafetensorsView& tensor : tensors->tensors()) {
        bytes += static_cast<int64_t>(tensor.bytes.size());
      }
    }
    return bytes;
  }

  /// `job`, which stops after each of these steps and goes on in that way.
  std::vector<double> LossesOf(const JobSpec& job, const std::vector<Shares>& ways,
                               const std::string& run) const {
    std::vector<double> losses;
    int64_t step = 0;
    for (const Shares& way : ways) {
      const std::vector<double> more = Losses(OnMesh(job, way), run, step += 2);
      losses.insert(losses.end(), more.begin(), more.end());
    }
    return losses;
  }

  std::string base_;
};

// A value and two moments, f32, of each trained number.
TEST_F(FrozenBase, IsNotInCheckpointsAndComesFromItsFolderOnAnyMesh) {
  PeftSpec dora = Lora();
  dora.use_dora = true;
  struct Case {
    std::string name;
    PeftSpec peft;
    std::string quantized;
    std::vector<Shares> ways;
  };
  const std::vector<Case> cases = {{"lora", Lora(), "none", {{0, 2, 1}, {3, 1, 1}, {0, 1, 2}}},
                                   {"dora", dora, "none", {{3, 1, 1}, {0, 1, 2}, {0, 2, 1}}},
                                   {"qlora", Lora(), "nf4", {{0, 1, 1}, {3, 1, 1}, {0, 1, 2}}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    JobSpec job = AdapterJob(c.peft);
    job.model.weight_quantization.type = c.quantized;
    const std::vector<double> whole = Losses(job, c.name, 6);
    EXPECT_EQ(TensorBytes(c.name), 12 * TrainedNumbers(job.model));
    EXPECT_EQ(Newest(c.name).manifest.base_tensors, BaseTensors(job.model, HeadWeights::kFromFile));
    EXPECT_EQ(LossesOf(job, {{0, 1, 1}, {0, 1, 1}, {0, 1, 1}}, c.name + "-again"), whole)
        << "not a bit depends on it";
    const std::vector<double> moved = LossesOf(job, c.ways, c.name + "-moved");
    EXPECT_EQ(TensorBytes(c.name + "-moved"), 12 * TrainedNumbers(job.model));
    ASSERT_EQ(moved.size(), whole.size());
    for (size_t step = 0; step < whole.size(); ++step) {
      EXPECT_NEAR(moved[step], whole[step], 1e-4) << "step " << step;
    }
  }
}

TEST_F(FrozenBase, IsInTheWeightsOfACheckpoint) {
  JobSpec job = AdapterJob(Lora());
  job.optimizer.learning_rate = 1e-30;
  engine::TinyRun whole(job.model, Fp32());
  ASSERT_TRUE(engine::ImportWeights(Env::Posix(), base_, *whole.model).ok());
  const Values expected = engine::ValuesOf(whole.model->parameters());
  engine::TinyRun fresh(job.model, Fp32());  // with weights of its own
  ExpectSaved(job, fresh, expected, 1e-6f);
}

TEST_F(FrozenBase, ThatHasChangedOrIsGoneIsRefusedUntilItIsBack) {
  const JobSpec job = AdapterJob(Lora());
  const std::vector<double> whole = Losses(job, "whole", 4);
  std::vector<double> losses = Losses(job, "stopped", 2);
  const std::string weights = base_ + "/model.safetensors", run = root_ + "/stopped";
  const std::string bytes = *ReadFile(Env::Posix(), weights);
  std::string other = bytes;
  other.back() = static_cast<char>(other.back() ^ 1);
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), weights, other).ok());
  const Status changed = Train(job, run, 4).status();
  EXPECT_EQ(changed.code(), StatusCode::kInvalid);
  EXPECT_THAT(changed.message(), ::testing::HasSubstr("leaves out the frozen weights of " + base_));
  EXPECT_THAT(changed.message(), ::testing::HasSubstr("are no longer those (fingerprint "));
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), weights, bytes).ok());
  std::filesystem::rename(base_, root_ + "/elsewhere");
  const Status gone = Train(job, run, 4).status();
  EXPECT_EQ(gone.code(), StatusCode::kInvalid);
  EXPECT_THAT(gone.message(), ::testing::HasSubstr("and there is no folder " + base_));
  // The same weights elsewhere are as good.
  JobSpec moved = job;
  moved.model.import_path = root_ + "/elsewhere";
  const std::vector<double> more = Losses(moved, "stopped", 4);
  losses.insert(losses.end(), more.begin(), more.end());
  EXPECT_EQ(losses, whole);
}

// As releases wrote it that left nothing out.
TEST_F(FrozenBase, InACheckpointIsReadFromThere) {
  const JobSpec job = AdapterJob(Lora());
  const std::vector<double> whole = Losses(job, "whole", 4);
  std::vector<double> losses = Losses(job, "old", 2);
  engine::LatestCheckpoint saved = Newest("old");
  engine::TinyRun base(job.model, Fp32());
  ASSERT_TRUE(engine::ImportWeights(Env::Posix(), base_, *base.model).ok());
  const engine::ParameterSet& parameters = base.model->parameters();
  std::vector<engine::NamedTensor> frozen = parameters.NamedValues();
  std::erase_if(frozen, [&](const engine::NamedTensor& tensor) {
    return !parameters[tensor.parameter].frozen;
  });
  const auto file = engine::WriteTensorFile(Env::Posix(), saved.path, 1, 2, frozen);
  ASSERT_TRUE(file.ok()) << file.status().message();
  saved.manifest.files.push_back(*file);
  saved.manifest.base_tensors.clear();
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), JoinPath(saved.path, engine::kManifestName),
                              engine::ManifestText(saved.manifest))
                  .ok());
  ASSERT_TRUE(Env::Posix().RemoveTree(base_).ok());
  const std::vector<double> more = Losses(job, "old", 4);
  losses.insert(losses.end(), more.begin(), more.end());
  EXPECT_EQ(losses, whole);
  EXPECT_THAT(Newest("old").manifest.base_tensors, ::testing::IsEmpty());
}

// A network that begins as what its adapters leave of it is in no folder.
TEST_F(FrozenBase, ThatBeginsOtherwiseIsInCheckpoints) {
  PeftSpec pissa = Lora();
  pissa.init = "pissa";
  const JobSpec job = AdapterJob(pissa);
  const std::vector<double> whole = Losses(job, "whole", 4);
  EXPECT_GT(TensorBytes("whole"), 12 * TrainedNumbers(job.model));
  EXPECT_EQ(LossesOf(job, {{0, 1, 1}, {0, 1, 1}}, "stopped"), whole);
}

TEST(FrozenBasePage, SaysWhatACheckpointTakes) {
  ModelSpec model;
  model.family = "llama";
  model.layers = 32;
  model.width = 4096;
  model.heads = 32;
  model.mlp_width = 11008;
  model.vocab_size = 32000;
  model.untied_classifier = true;
  model.peft = Lora();
  model.peft.rank = 16;
  double frozen = 0;  // in bf16, except tables and vectors
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    const bool rounded = parameter.matrix() && !parameter.looked_up();
    if (parameter.frozen)
      frozen += (rounded ? 2.0 : 4.0) * static_cast<double>(parameter.Elements());
  }
  const auto trained = static_cast<double>(TrainedNumbers(model));
  char text[200];
  std::snprintf(text, sizeof(text),
                "trains %.1f M numbers: its checkpoint has %.0f MB, and would have %.1f GB more",
                trained * 1e-6, 12 * trained * 1e-6, frozen * 1e-9);
  const std::string page = *ReadFile(Env::Posix(), WEFT_SOURCE_DIR "/docs/techniques/peft.md");
  EXPECT_THAT(page, ::testing::HasSubstr(text));
}

}  // namespace
}  // namespace weft::testing
