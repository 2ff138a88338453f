#include "worker/engine/checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/publish.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/checkpoint/testing.h"

namespace weft::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kRun = "/runs/j-1";

class CatalogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(env_.CreateDirs(kRun).ok());
    ASSERT_TRUE(fence_.Claim().ok());
    ASSERT_TRUE(PrepareCheckpointsFolder(env_, kRun).ok());
  }

  void Publish(int64_t step, bool verify = true) {
    Result<CheckpointManifest> published =
        PublishCheckpoint(env_, kRun, fence_, TestManifest(step), TestState(step).Tensors());
    ASSERT_TRUE(published.ok()) << published.status().message();
    if (!verify) return;
    ASSERT_TRUE(VerifyAndMark(env_, CheckpointPath(kRun, step)).ok());
  }

  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const std::vector<CheckpointInfo> found = *ListCheckpoints(env_, kRun);
    for (const CheckpointInfo& info : found) steps.push_back(info.step);
    return steps;
  }

  FaultEnv env_;
  EpochFence fence_{env_, kRun, 3};
};

TEST_F(CatalogTest, APublishedCheckpointLoadsAsItWasSaved) {
  Publish(100);
  const std::string path = kRun + "/checkpoints/step-00000100";
  Result<CheckpointManifest> manifest = VerifyCheckpoint(env_, path);
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest->step, 100);
  EXPECT_EQ(manifest->epoch, 3);
  EXPECT_FALSE(manifest->weft_version.empty());
  EXPECT_THAT(*env_.ListDir(path),
              ElementsAre("manifest.json", "state-00000-of-00001.safetensors", "verified"));
  TestState loaded;
  ASSERT_TRUE(LoadTensors(env_, path, *manifest, loaded.Tensors()).ok());
  EXPECT_TRUE(loaded == TestState(100));
}

TEST_F(CatalogTest, LoadingIntoAnotherModelNamesTheTensor) {
  Publish(1);
  const std::string path = CheckpointPath(kRun, 1);
  CheckpointManifest manifest = *ReadManifest(env_, path);
  TestState state;
  auto tensors = state.Tensors();
  auto expect_refused = [&](const char* what, const char* text) {
    Status refused = LoadTensors(env_, path, manifest, tensors);
    EXPECT_EQ(refused.code(), StatusCode::kInvalid) << what;
    EXPECT_THAT(refused.message(), HasSubstr(text));
  };
  tensors[0].view = TensorView(tensors[0].view.data, DType::kF32, Shape{4, 3});
  expect_refused("another shape", "F32 [3, 4]");
  tensors[0].name = "other";
  expect_refused("a tensor too many in the file", "'weights'");
  tensors = state.Tensors();
  float extra = 0;
  tensors.push_back({"extra", TensorView(&extra, DType::kF32, Shape{1})});
  expect_refused("a tensor too few in the file", "'extra'");
}

TEST_F(CatalogTest, Bf16IsReadAsF32WhereOnlyTheWeightsCount) {
  BFloat16 saved[] = {ToBFloat16(1.5f), ToBFloat16(-3e38f), ToBFloat16(0x1p-130f)};
  float read[3] = {};
  const std::string path = CheckpointPath(kRun, 1);
  ASSERT_TRUE(env_.CreateDirs(path).ok());
  CheckpointManifest manifest = TestManifest(1);
  manifest.files.push_back(
      *WriteTensorFile(env_, path, 0, 1, {{"w", TensorView(saved, DType::kBF16, Shape{3})}}));
  const std::vector<NamedTensor> target = {{"w", TensorView(read, DType::kF32, Shape{3})}};
  Status refused = LoadTensors(env_, path, manifest, target);
  EXPECT_EQ(refused.code(), StatusCode::kInvalid) << "resuming wants the same type";
  EXPECT_THAT(refused.message(), HasSubstr("BF16"));
  ASSERT_TRUE(LoadTensors(env_, path, manifest, target, ExtraTensors::kIgnore).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read[i], ToFloat(saved[i]));
}

TEST_F(CatalogTest, DamageIsFoundAndNamed) {
  const std::string path = CheckpointPath(kRun, 7);
  const std::string shard = path + "/state-00000-of-00001.safetensors";
  auto expect_damage = [&](const char* what, const std::string& file) {
    Status damaged = VerifyCheckpoint(env_, path).status();
    EXPECT_EQ(damaged.code(), StatusCode::kCorrupt) << what;
    EXPECT_THAT(damaged.message(), AllOf(HasSubstr(file), HasSubstr("hint:"))) << what;
    ASSERT_TRUE(env_.RemoveTree(path).ok());
  };
  Publish(7);
  const uint64_t size = *env_.FileSize(shard);
  for (uint64_t offset = 0; offset < size; offset += 13) {
    env_.FlipBits(shard, offset, 0x10);
    EXPECT_EQ(VerifyCheckpoint(env_, path).status().code(), StatusCode::kCorrupt) << offset;
    env_.FlipBits(shard, offset, 0x10);
  }
  EXPECT_TRUE(VerifyCheckpoint(env_, path).ok());
  env_.FlipBits(shard, size - 1, 1);
  expect_damage("flipped bit", shard);

  Publish(7);
  ASSERT_TRUE(env_.RemoveFile(shard).ok());
  expect_damage("missing shard", shard);

  Publish(7);
  std::string bytes = *ReadFile(env_, shard);
  ASSERT_TRUE(WriteFileAtomic(env_, shard, bytes.substr(0, bytes.size() - 1)).ok());
  expect_damage("truncated shard", shard);

  Publish(7);
  ASSERT_TRUE(env_.RemoveFile(path + "/manifest.json").ok());
  expect_damage("missing manifest", "manifest.json");

  Publish(7);
  env_.FlipBits(path + "/manifest.json", 40, 1);
  expect_damage("changed manifest", "manifest.json");

  EXPECT_EQ(VerifyCheckpoint(env_, path).status().code(), StatusCode::kNotFound);
}

TEST_F(CatalogTest, AManifestCannotPointOutsideItsFolder) {
  Publish(7);
  const std::string path = CheckpointPath(kRun, 7);
  for (const char* name : {"../step-00000006/x", "..", "/etc/passwd"}) {
    CheckpointManifest manifest = *ReadManifest(env_, path);
    manifest.files[0].name = name;
    ASSERT_TRUE(WriteFileAtomic(env_, path + "/manifest.json", ManifestText(manifest)).ok());
    EXPECT_THAT(VerifyCheckpoint(env_, path).status().message(), HasSubstr("outside the folder"));
  }
}

TEST_F(CatalogTest, ResumeFallsBackToTheNewestSoundOne) {
  EXPECT_FALSE(LatestVerified(env_, kRun)->latest.has_value());
  EXPECT_FALSE(LatestVerified(env_, "/runs/none")->latest.has_value());
  for (int64_t step : {1, 2, 3}) Publish(step);
  EXPECT_EQ(LatestVerified(env_, kRun)->latest->manifest.step, 3);
  env_.FlipBits(CheckpointPath(kRun, 3) + "/state-00000-of-00001.safetensors", 200, 1);
  ASSERT_TRUE(env_.RemoveFile(CheckpointPath(kRun, 2) + "/manifest.json").ok());
  LatestSearch search = *LatestVerified(env_, kRun);
  EXPECT_EQ(search.latest->manifest.step, 1);
  ASSERT_EQ(search.rejected.size(), 2u);
  EXPECT_THAT(search.rejected[0].message(), HasSubstr("step-00000003"));
  EXPECT_THAT(search.rejected[1].message(), HasSubstr("step-00000002"));
}

TEST_F(CatalogTest, ADamagedCheckpointIsReplacedAndASoundOneKept) {
  Publish(5);
  const std::string shard = CheckpointPath(kRun, 5) + "/state-00000-of-00001.safetensors";
  env_.FlipBits(shard, 200, 1);
  Publish(5);
  EXPECT_TRUE(VerifyCheckpoint(env_, CheckpointPath(kRun, 5)).ok());
  CheckpointManifest other = TestManifest(5);
  other.job_id = "other";
  ASSERT_TRUE(PublishCheckpoint(env_, kRun, fence_, other, TestState(5).Tensors()).ok());
  EXPECT_EQ(ReadManifest(env_, CheckpointPath(kRun, 5))->job_id, "j-1");
  EXPECT_THAT(*env_.ListDir(CheckpointsFolder(kRun)), ElementsAre("step-00000005"));
}

TEST_F(CatalogTest, OnlyWholeStepFoldersAreListed) {
  Publish(12);
  Publish(123456789, false);
  for (const char* name : {"step-", "step-x", "step--1", "other", ".tmp-step-00000003-epoch-1"}) {
    ASSERT_TRUE(env_.CreateDirs(JoinPath(CheckpointsFolder(kRun), name)).ok());
  }
  EXPECT_THAT(Steps(), ElementsAre(12, 123456789));
  EXPECT_TRUE((*ListCheckpoints(env_, kRun))[0].verified);
  EXPECT_FALSE((*ListCheckpoints(env_, kRun))[1].verified);
}

/// Brute force over the rules as docs/checkpoint_format.md states them.
TEST(Retention, NeverDeletesTheNewestVerifiedTheResumedOrTooMany) {
  constexpr int kCount = 5;
  for (int marks = 0; marks < 1 << kCount; ++marks) {
    for (int64_t keep = 1; keep <= 4; ++keep) {
      for (int64_t resume = -1; resume < kCount; ++resume) {
        for (int64_t now = 0; now < kCount; ++now) {
          std::vector<CheckpointInfo> all;
          for (int64_t step = 0; step < kCount; ++step) {
            all.push_back({"p", step, step == now || (marks >> step & 1) != 0});
          }
          Retention retention{now, keep, std::nullopt};
          if (resume >= 0) retention.resume_step = resume;
          std::vector<bool> gone(kCount, false);
          for (const CheckpointInfo& info : ToCollect(all, retention)) {
            gone[static_cast<size_t>(info.step)] = true;
          }
          int64_t verified_kept = 0;
          for (int64_t step = kCount - 1; step >= 0; --step) {
            bool expect_kept = step >= now || step == resume;
            if (step <= now && all[static_cast<size_t>(step)].verified) {
              expect_kept = expect_kept || verified_kept < keep;
              ++verified_kept;
            }
            ASSERT_EQ(!gone[static_cast<size_t>(step)], expect_kept)
                << "step " << step << " now " << now << " keep " << keep << " resume " << resume
                << " marks " << marks;
          }
        }
      }
    }
  }
}

TEST_F(CatalogTest, CollectionDeletesWholeCheckpointsOfTheOwnerOnly) {
  for (int64_t step : {1, 2, 3, 4}) Publish(step, step != 2);
  EpochFence newer(env_, kRun, 4);
  ASSERT_TRUE(newer.Claim().ok());
  EXPECT_EQ(CollectCheckpoints(env_, kRun, fence_, {4, 2, {}}).status().code(),
            StatusCode::kConflict);
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(*CollectCheckpoints(env_, kRun, newer, {4, 2, {}}), 2);
  EXPECT_THAT(*env_.ListDir(CheckpointsFolder(kRun)),
              ElementsAre("step-00000003", "step-00000004"));
}

TEST(EpochFence, TheNewestAttemptOwnsTheFolder) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  EpochFence third(env, "/run", 3);
  EpochFence fourth(env, "/run", 4);
  ASSERT_TRUE(third.Claim().ok());
  EXPECT_TRUE(third.Check().ok());
  ASSERT_TRUE(fourth.Claim().ok());
  EXPECT_TRUE(fourth.Claim().ok()) << "again after a restart of the same attempt";
  Status fenced = third.Check();
  EXPECT_EQ(fenced.code(), StatusCode::kConflict);
  EXPECT_THAT(fenced.message(), AllOf(HasSubstr("attempt 3"), HasSubstr("attempt 4")));
  EXPECT_EQ(third.Claim().code(), StatusCode::kConflict);
  EXPECT_THAT(*env.ListDir("/run/epochs"), ElementsAre("4"));
  EXPECT_EQ(EpochFence(env, "/run", 2).Claim().code(), StatusCode::kConflict);
}

TEST(EpochFence, AnOldClaimThatRacesCannotTakeTheFolderBack) {
  // The old attempt has looked for newer claims; the new one claims; the old one writes its own.
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  EpochFence fourth(env, "/run", 4);
  ASSERT_TRUE(fourth.Claim().ok());
  ASSERT_TRUE(env.NewWritableFile("/run/epochs/3").ok());
  EXPECT_TRUE(fourth.Check().ok());
  EXPECT_EQ(EpochFence(env, "/run", 3).Check().code(), StatusCode::kConflict);
}

TEST(EpochFence, AClaimSurvivesACrash) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  env.SyncAll();
  ASSERT_TRUE(EpochFence(env, "/run", 4).Claim().ok());
  env.SimulateCrash();
  EXPECT_EQ(EpochFence(env, "/run", 3).Claim().code(), StatusCode::kConflict);
}

}  // namespace
}  // namespace weft::engine
