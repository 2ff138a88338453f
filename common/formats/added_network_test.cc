#include "common/formats/added_network.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name + "/start";
}

JobSpec JobOn(const std::string& folder) {
  JobSpec job;
  job.name = "value";
  job.data.train = {"text"};
  job.model.context = 16;
  job.model.untied_classifier = true;
  job.train.value_learning.base.import_path = folder;
  return job;
}

TEST(ResolveAddedNetwork, TakesItsSizesFromItsFolder) {
  JobSpec job = JobOn(Folder("gpt2"));
  ASSERT_EQ(ResolveAddedNetwork(Env::Posix(), job).ToString(), OkStatus().ToString());
  const ModelSpec& base = job.train.value_learning.base;
  EXPECT_EQ(base.import_path, Folder("gpt2"));
  EXPECT_EQ(base.layers, 2);
  EXPECT_EQ(base.width, 32);
  EXPECT_EQ(base.mlp_width, 96);
  EXPECT_EQ(base.vocab_size, 67);
  EXPECT_EQ(job.model.vocab_size, 67) << "which the job leaves open";
  EXPECT_EQ(job.model.width, JobSpec().model.width) << "the model's own";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();

  const Json once = ToJson(job);
  ASSERT_TRUE(ResolveAddedNetwork(Env::Posix(), job).ok());
  EXPECT_EQ(ToJson(job), once);
}

TEST(ResolveAddedNetwork, HasNoDropout) {
  FaultEnv env;
  std::string config = *ReadFile(Env::Posix(), Folder("gpt2") + "/config.json");
  for (size_t at = 0; (at = config.find("_pdrop\": 0", at)) != std::string::npos; ++at) {
    config.replace(at, 10, "_pdrop\": 0.1");
  }
  ASSERT_TRUE(env.CreateDirs("/f").ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/f/config.json", config).ok());
  JobSpec job = JobOn("/f");
  ASSERT_EQ(ResolveAddedNetwork(env, job).ToString(), OkStatus().ToString());
  EXPECT_EQ(DropoutOf(job.train.value_learning.base), 0);
  EXPECT_EQ(AttentionDropoutOf(job.train.value_learning.base), 0);
}

TEST(ResolveAddedNetwork, SaysWhatDoesNotFit) {
  const auto problem = [](const std::string& folder, void (*change)(JobSpec & job)) {
    JobSpec job = JobOn(folder);
    change(job);
    const Status status = ResolveAddedNetwork(Env::Posix(), job);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    return status.message();
  };
  EXPECT_THAT(problem("/nowhere", [](JobSpec&) {}),
              HasSubstr("train.value_learning.base.import_path: "));
  EXPECT_THAT(problem(Folder("gpt2"), [](JobSpec& job) { job.model.vocab_size = 50; }),
              HasSubstr("has a vocabulary of 67, the model one of 50"));
  EXPECT_THAT(problem(Folder("gpt2"), [](JobSpec& job) { job.model.context = 25; }),
              HasSubstr("train.sequence_length 25 is longer than the context 24 of "
                        "train.value_learning.base.import_path"));
  EXPECT_THAT(problem(Folder("bert_mlm"), [](JobSpec&) {}),
              HasSubstr("which does not predict the next token"));
  EXPECT_THAT(
      problem(Folder("gpt2"), [](JobSpec& job) { job.train.value_learning.base.width = 64; }),
      HasSubstr("train.value_learning.base.width is not what the folder " + Folder("gpt2") +
                " says; hint: give train.value_learning.base.import_path alone"));
  EXPECT_THAT(problem(Folder("gpt2"),
                      [](JobSpec& job) { job.train.value_learning.base.peft.method = "lora"; }),
              HasSubstr("train.value_learning.base.peft is not what the folder"));
}

}  // namespace
}  // namespace weft
