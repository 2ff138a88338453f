#include "worker/trainer/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/catalog.h"

namespace weft::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RunFolder, IsMadeAndLeftEmpty) {
  FaultEnv env;
  ASSERT_TRUE(CheckRunFolder(env, "/runs/job", 1).ok());
  EXPECT_EQ(*env.ListDir("/runs/job"), std::vector<std::string>{"checkpoints"});
  EXPECT_TRUE(env.ListDir(engine::CheckpointsFolder("/runs/job"))->empty());
}

TEST(RunFolder, ThatCannotBeWrittenIsForTheUserToMendWhicheverCallSaysSo) {
  FaultEnv sound;
  ASSERT_TRUE(CheckRunFolder(sound, "/runs/job", 0).ok());
  for (const Status& error :
       {ErrnoError("creating /runs/job", EACCES), ErrnoError("creating /runs/job", EROFS),
        ErrnoError("creating /runs/job", EEXIST)}) {
    for (int64_t operation = 1; operation <= sound.operations(); ++operation) {
      FaultEnv env;
      env.FailOperation(operation, error);
      const Status status = CheckRunFolder(env, "/runs/job", 0);
      ASSERT_EQ(status.code(), StatusCode::kInvalid) << operation << ": " << status.message();
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("/runs/job"), HasSubstr("hint: make it writable")));
    }
  }
}

TEST(RunFolder, OnAFullDiskMayBeTriedAgain) {
  FaultEnv env;
  env.SetCapacity(0);
  EXPECT_EQ(CheckRunFolder(env, "/runs/job", 0).code(), StatusCode::kExhausted);
}

TEST(RunFolder, KeepsTheSecondsOfAllAttempts) {
  FaultEnv env;
  ASSERT_TRUE(CheckRunFolder(env, "/runs/job", 0).ok());
  EXPECT_EQ(*ReadRunSeconds(env, "/runs/job"), 0);
  ASSERT_TRUE(SaveRunSeconds(env, "/runs/job", 12.5).ok());
  ASSERT_TRUE(SaveRunSeconds(env, "/runs/job", 20.25).ok());
  EXPECT_EQ(*ReadRunSeconds(env, "/runs/job"), 20.25);
  for (const char* damaged : {"", "{\"seconds\": \"x\"}"}) {
    ASSERT_TRUE(WriteFileAtomic(env, "/runs/job/attempts.json", damaged).ok());
    const Status status = ReadRunSeconds(env, "/runs/job").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("/runs/job/attempts.json: "), HasSubstr("hint: delete it")));
  }
}

}  // namespace
}  // namespace weft::trainer
