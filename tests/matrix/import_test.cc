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

  std::string root_;
};

TEST_F(ImportOnRanks, HasTheWeightsThatOneRankReads) {
  Env& env = Env::Posix();
  for (const std::string family : {"gpt2", "llama"}) {
    const std::string folder = WEFT_SOURCE_DIR "/tests/parity/testdata/" + family + "/start";
    JobSpec plain = JobOf(Combination(Axes().size(), 0));
    plain.model = ModelSpec();
    plain.model.import_path = plain.data.tokenizer.path = folder;
    plain.optimizer.learning_rate = 1e-30;  // leaves weights as they are
    ASSERT_TRUE(ResolveImportedModel(env, plain).ok());
    engine::ModelOptions options;
    options.precision = &kFp32Precision;
    engine::TinyRun whole(plain.model, options);
    ASSERT_TRUE(engine::ImportWeights(env, folder, *whole.model).ok());
    const Values expected = engine::ValuesOf(whole.model->parameters());
    int runs = 0;
    const struct {
      int64_t zero_stage, tensor, pipeline;
    } ways[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {0, 2, 1}, {3, 2, 1}, {0, 1, 2}};
    for (const auto& way : ways) {
      for (const std::string where : {"none", "nvme"}) {
        SCOPED_TRACE(family + ", zero_stage " + std::to_string(way.zero_stage) + ", tensor " +
                     std::to_string(way.tensor) + ", pipeline " + std::to_string(way.pipeline) +
                     ", parameters in " + where);
        JobSpec job = plain;
        ResourceSpec& resources = job.resources;
        resources.tensor_parallel = way.tensor;
        resources.pipeline_parallel = way.pipeline;
        resources.zero_stage = way.zero_stage;
        resources.ranks = way.tensor * way.pipeline * (way.zero_stage > 0 ? 2 : 1);
        if (where == "nvme") {
          resources.offload_optimizer = resources.offload_parameters = where;
          resources.offload_directory = root_;
        }
        const std::string run = root_ + "/" + std::to_string(++runs) + family;
        const auto training = Train(job, run, 1);
        ASSERT_TRUE(training.ok()) << training.status().message();
        const auto saved = engine::LatestVerified(env, run);
        ASSERT_TRUE(saved.ok() && saved->latest);
        const Status loaded = trainer::LoadTrainedWeights(
            env, saved->latest->path, saved->latest->manifest, whole.model->parameters());
        ASSERT_TRUE(loaded.ok()) << loaded.message();
        const Values values = engine::ValuesOf(whole.model->parameters());
        for (size_t p = 0; p < expected.size(); ++p) {
          float off = 0;
          for (size_t i = 0; i < expected[p].size(); ++i) {
            off = std::max(off, std::fabs(values[p][i] - expected[p][i]));
          }
          EXPECT_LT(off, 1e-20f) << whole.model->parameters()[static_cast<int64_t>(p)].name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
