// Weights of a Hugging Face folder on ranks that each have a part of them, in files of their own
// too: those that one rank reads.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"
#include "worker/engine/checkpoint/catalog.h"
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

}  // namespace
}  // namespace weft::testing
