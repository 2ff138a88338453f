#include "common/formats/usage_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

void Write(Env& env, const std::string& path, const std::string& text) {
  ASSERT_TRUE(env.CreateDirs(DirName(path)).ok());
  ASSERT_TRUE(WriteFileAtomic(env, path, text).ok());
}

TEST(UsageFiles, AreThoseNextToTheWeights) {
  FaultEnv env;
  Write(env, "/m/config.json", R"({"bos_token_id":1})");
  Write(env, "/m/generation_config.json", R"({"eos_token_id":[1,2]})");
  const Result<UsageFiles> files = ReadUsageFiles(env, "/m");
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->config["bos_token_id"], 1);
  EXPECT_EQ(files->generation_config["eos_token_id"], Json({1, 2}));
  for (const char* folder : {"/none", ""}) {
    const UsageFiles nothing = *ReadUsageFiles(env, folder);
    EXPECT_TRUE(nothing.config.is_object() && nothing.config.empty());
  }
}

TEST(UsageFiles, AreKeptInTheRunFolder) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  EXPECT_TRUE(LoadUsageFiles(env, "/run")->config.empty());
  UsageFiles files;
  files.config = {{"a", 1}};
  files.generation_config = {{"b", {1, 2}}};
  ASSERT_TRUE(SaveUsageFiles(env, "/run", files).ok());
  const UsageFiles again = *LoadUsageFiles(env, "/run");
  EXPECT_EQ(again.config, files.config);
  EXPECT_EQ(again.generation_config, files.generation_config);
}

TEST(UsageFiles, NameTheFileThatIsSomethingElse) {
  FaultEnv env;
  for (const char* text : {"", "[1]", "{", "null", "{\"a\":1,\"a\":2}"}) {
    Write(env, "/m/generation_config.json", text);
    const Status status = ReadUsageFiles(env, "/m").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << text;
    EXPECT_THAT(status.message(), HasSubstr("/m/generation_config.json"));
    Write(env, "/run/imported.json", text);
    EXPECT_EQ(LoadUsageFiles(env, "/run").status().code(), StatusCode::kCorrupt) << text;
  }
  Write(env, "/run/imported.json", R"({"config":[]})");
  EXPECT_EQ(LoadUsageFiles(env, "/run").status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace weft
