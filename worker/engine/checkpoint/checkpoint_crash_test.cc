#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/publish.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/checkpoint/testing.h"
#include "worker/engine/checkpoint/writer.h"

namespace weft::engine {
namespace {

const std::string kRun = "/runs/j-1";

std::unique_ptr<CheckpointWriter> Open(FaultEnv& env, int64_t epoch, int64_t keep_last) {
  CheckpointWriterOptions options;
  options.env = &env;
  options.run_dir = kRun;
  options.epoch = epoch;
  options.keep_last = keep_last;
  Result<std::unique_ptr<CheckpointWriter>> writer = CheckpointWriter::Open(std::move(options));
  return writer.ok() ? *std::move(writer) : nullptr;
}

Status Save(CheckpointWriter& writer, int64_t step) {
  TestState state(step);
  WEFT_RETURN_IF_ERROR(writer.Save(TestManifest(step), state.Tensors()).status());
  return writer.Wait();
}

/// What a new attempt finds: the step it resumes from, its tensors compared; -1 for none.
int64_t ResumeStep(FaultEnv& env) {
  Result<LatestSearch> search = LatestVerified(env, kRun);
  EXPECT_TRUE(search.ok()) << search.status().message();
  if (!search.ok() || !search->latest) return -1;
  EXPECT_TRUE(search->rejected.empty())
      << "a half checkpoint is visible: " << search->rejected[0].message();
  TestState loaded;
  Status status =
      LoadTensors(env, search->latest->path, search->latest->manifest, loaded.Tensors());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(loaded == TestState(search->latest->manifest.step));
  return search->latest->manifest.step;
}

// Keep-last 1 is the hardest: the previous checkpoint is deleted as soon as the rule allows it.
TEST(CheckpointCrash, AtEveryOperationAVerifiedCheckpointIsLeft) {
  int old_seen = 0;
  int new_seen = 0;
  for (int64_t crash_at = 1;; ++crash_at) {
    bool done = false;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      FaultEnv env;
      ASSERT_TRUE(env.CreateDirs(kRun).ok());
      env.SyncAll();
      auto writer = Open(env, 1, 1);
      ASSERT_TRUE(Save(*writer, 100).ok());
      env.CrashAtOperation(env.operations() + crash_at);
      const int64_t before = env.operations();
      const bool saved = Save(*writer, 200).ok();
      done = env.operations() - before < crash_at;
      writer.reset();
      env.SimulateCrash(seed == 0 ? FaultEnv::Unsynced::kLost : FaultEnv::Unsynced::kTorn, seed);

      const int64_t resumed = ResumeStep(env);
      ASSERT_TRUE(resumed == 200 || (resumed == 100 && !saved))
          << resumed << " after a crash at operation " << crash_at << ", seed " << seed;
      ++(resumed == 100 ? old_seen : new_seen);

      // The next attempt carries on whatever it finds.
      auto next = Open(env, 2, 1);
      ASSERT_NE(next, nullptr);
      ASSERT_TRUE(Save(*next, 200).ok());
      ASSERT_TRUE(Save(*next, 300).ok());
      EXPECT_EQ(ResumeStep(env), 300);
      EXPECT_THAT(*env.ListDir(CheckpointsFolder(kRun)), testing::ElementsAre("step-00000300"));
    }
    if (done) break;
  }
  EXPECT_GT(old_seen, 10);
  EXPECT_GT(new_seen, 10);
}

TEST(CheckpointCrash, WhileADamagedCheckpointIsReplacedTheOlderOneStays) {
  for (int64_t crash_at = 1;; ++crash_at) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs(kRun).ok());
    env.SyncAll();
    auto writer = Open(env, 1, 2);
    ASSERT_TRUE(Save(*writer, 100).ok());
    ASSERT_TRUE(Save(*writer, 200).ok());
    env.FlipBits(CheckpointPath(kRun, 200) + "/state-00000-of-00001.safetensors", 200, 1);
    env.CrashAtOperation(env.operations() + crash_at);
    const int64_t before = env.operations();
    const bool saved = Save(*writer, 200).ok();
    const bool done = env.operations() - before < crash_at;
    writer.reset();
    env.SimulateCrash();
    LatestSearch search = *LatestVerified(env, kRun);
    ASSERT_TRUE(search.latest.has_value());
    // Either the old damaged one is still there, or the new one, or neither.
    if (search.latest->manifest.step == 100) {
      EXPECT_FALSE(saved);
    } else {
      EXPECT_TRUE(search.rejected.empty());
    }
    if (done) {
      EXPECT_EQ(search.latest->manifest.step, 200);
      break;
    }
  }
}

TEST(CheckpointCrash, AnyFailedOperationLeavesTheOldOneAndTheNextSaveWorks) {
  for (int64_t fail_at = 1;; ++fail_at) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs(kRun).ok());
    auto writer = Open(env, 1, 1);
    ASSERT_TRUE(Save(*writer, 100).ok());
    const int64_t before = env.operations();
    env.FailOperation(before + fail_at, ExhaustedError("No space left on device"));
    const bool saved = Save(*writer, 200).ok();
    if (env.operations() - before < fail_at) break;
    const int64_t resumed = ResumeStep(env);
    EXPECT_TRUE(resumed == 200 || (resumed == 100 && !saved)) << "operation " << fail_at;
    ASSERT_TRUE(Save(*writer, 300).ok());
    EXPECT_EQ(ResumeStep(env), 300);
    EXPECT_THAT(*env.ListDir(CheckpointsFolder(kRun)), testing::ElementsAre("step-00000300"));
  }
}

}  // namespace
}  // namespace weft::engine
