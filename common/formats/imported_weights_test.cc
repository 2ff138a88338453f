#include "common/formats/imported_weights.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckImportedWeights, TellsWhatAFolderHoldsInstead) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/f").ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/f/config.json", "{}").ok());
  EXPECT_TRUE(CheckImportedWeights(env, JobSpec(), true).ok()) << "it imports nothing";
  JobSpec job;
  job.model.import_path = "/f";
  EXPECT_TRUE(CheckImportedWeights(env, job, false).ok()) << "the workers may have them";
  const Status missing = CheckImportedWeights(env, job, true);
  EXPECT_EQ(missing.code(), StatusCode::kInvalid);
  EXPECT_THAT(missing.message(), HasSubstr("model.import_path: /f has no model.safetensors"));

  const std::string index = R"({"weight_map":{"wte.weight":"model-00001-of-00001.safetensors"}})";
  ASSERT_TRUE(WriteFileAtomic(env, "/f/model.safetensors.index.json", index).ok());
  EXPECT_EQ(CheckImportedWeights(env, job, false).message(), "") << "nor does an index hold them";
  EXPECT_THAT(CheckImportedWeights(env, job, true).message(),
              HasSubstr("model-00001-of-00001.safetensors"));
  ASSERT_TRUE(env.RemoveFile("/f/model.safetensors.index.json").ok());

  ASSERT_TRUE(WriteFileAtomic(env, "/f/pytorch_model.bin", "x").ok());
  for (const bool missing_is_error : {false, true}) {
    EXPECT_THAT(CheckImportedWeights(env, job, missing_is_error).message(),
                HasSubstr("it holds PyTorch pickles"));
  }
  ASSERT_TRUE(WriteFileAtomic(env, "/f/model.safetensors", "cut").ok());
  const Status damaged = CheckImportedWeights(env, job, false);
  EXPECT_EQ(damaged.code(), StatusCode::kInvalid);
  EXPECT_THAT(damaged.message(),
              AllOf(HasSubstr("/f/model.safetensors"), HasSubstr("copy or export the folder")));
}

TEST(CheckImportedWeights, ReadsThoseOfBothNetworks) {
  const std::string good = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";
  JobSpec job;
  job.model.import_path = job.train.value_learning.base.import_path = good;
  EXPECT_EQ(CheckImportedWeights(Env::Posix(), job, true).message(), "");
  job.train.value_learning.base.import_path = "/nowhere";
  EXPECT_THAT(CheckImportedWeights(Env::Posix(), job, true).message(),
              HasSubstr("train.value_learning.base.import_path: there is no folder /nowhere"));
  EXPECT_EQ(CheckStartWeights(Env::Posix(), job, true).message(), "") << "it is not started from";
}

TEST(CheckImportedWeights, ReadsThoseOfAnAdapter) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/a").ok());
  JobSpec job;
  job.model.peft.import_path = "/a";
  for (const auto& [method, file] : {std::pair("prefix", "/a/adapter_model.safetensors"),
                                     std::pair("houlsby", "/a/weft_adapter.safetensors")}) {
    job.model.peft.method = method;
    EXPECT_EQ(CheckImportedWeights(env, job, false).message(), "") << "the workers may have them";
    const Status missing = CheckImportedWeights(env, job, true);
    EXPECT_EQ(missing.code(), StatusCode::kInvalid);
    EXPECT_THAT(missing.message(), AllOf(HasSubstr("model.peft.import_path: "), HasSubstr(file)));
    ASSERT_TRUE(WriteFileAtomic(env, file, "cut").ok());
    for (const bool missing_is_error : {false, true}) {
      const Status damaged = CheckImportedWeights(env, job, missing_is_error);
      EXPECT_EQ(damaged.code(), StatusCode::kInvalid);
      EXPECT_THAT(damaged.message(), AllOf(HasSubstr("model.peft.import_path: "), HasSubstr(file),
                                           HasSubstr("copy or export the folder")));
    }
    ASSERT_TRUE(env.RemoveFile(file).ok());
  }
}

}  // namespace
}  // namespace weft
