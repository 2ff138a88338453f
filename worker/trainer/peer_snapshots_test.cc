#include "worker/trainer/peer_snapshots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/checkpoint/testing.h"
#include "worker/engine/comm/rank_threads.h"

namespace weft::trainer {
namespace {

namespace fs = std::filesystem;
using engine::NamedTensor;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BuddyGroups, PutRanksOfTwoWorkersTogether) {
  EXPECT_THAT(BuddyGroups({"a", "a", "b", "b"}), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(BuddyGroups({"a"}), ElementsAre(0));
  const std::vector<int64_t> four = BuddyGroups({"a", "b", "c", "d"});
  EXPECT_EQ(four[0], four[1]);
  EXPECT_EQ(four[2], four[3]);
  EXPECT_NE(four[0], four[2]);
}

TEST(BuddyGroups, LeaveNoRankWithoutABuddyOnAnotherWorker) {
  const std::vector<std::vector<std::string>> placements = {
      {"a", "b", "c"},      {"a", "a", "a", "b"},      {"a", "b", "b", "b", "c", "c"},
      {"a", "b", "a", "b"}, {"a", "b", "c", "d", "e"},
  };
  for (const std::vector<std::string>& workers : placements) {
    const std::vector<int64_t> groups = BuddyGroups(workers);
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      std::set<std::string> with;
      for (size_t other = 0; other < workers.size(); ++other) {
        if (groups[other] == groups[rank]) with.insert(workers[other]);
      }
      EXPECT_GE(with.size(), 2u) << testing::PrintToString(workers) << " rank " << rank;
    }
  }
}

/// Ranks that are threads, on workers whose memory is a folder each. Every rank has a number of its
/// own, which is the step and the rank.
class PeerSnapshotsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "snapshots";
    fs::remove_all(root_);
    fs::create_directories(root_ + "/runs/j");
  }
  void TearDown() override { fs::remove_all(root_); }

  AttemptSpec Spec(const std::vector<std::string>& workers, int rank) const {
    AttemptSpec spec;
    spec.job_id = "j";
    spec.epoch = epoch_;
    spec.rank = rank;
    spec.world_size = std::ssize(workers);
    spec.run_dir = root_ + "/runs/j";
    spec.plan.rank_workers = workers;
    spec.memory_dir = root_ + "/" + workers[static_cast<size_t>(rank)];
    return spec;
  }

  /// An attempt of ranks there: `body` is what each does.
  void Run(const std::vector<std::string>& workers,
           const std::function<void(PeerSnapshots&, int rank)>& body) {
    ++epoch_;
    engine::EpochFence fence(env_, root_ + "/runs/j", epoch_);
    ASSERT_TRUE(fence.Claim().ok());
    ASSERT_TRUE(env_.CreateDirs(engine::CheckpointsFolder(root_ + "/runs/j")).ok());
    for (const std::string& worker : workers) fs::create_directories(root_ + "/" + worker);
    engine::RunRanks(static_cast<int>(workers.size()), seconds(20), [&](auto& group) {
      const AttemptSpec spec = Spec(workers, group.rank());
      auto snapshots = PeerSnapshots::Open(env_, spec, &group);
      ASSERT_TRUE(snapshots.ok()) << snapshots.status().message();
      body(**snapshots, group.rank());
    });
  }

  /// What a rank says of a snapshot of `step` in which `saving` ranks have a part.
  std::string Take(PeerSnapshots& snapshots, int rank, int64_t step, int64_t saving) {
    float number = static_cast<float>(100 * step + rank);
    const engine::CheckpointManifest manifest = engine::TestManifest(step);
    std::vector<NamedTensor> tensors;
    if (rank < saving) {
      tensors.push_back({"w" + std::to_string(rank), TensorView(&number, DType::kF32, {1})});
    }
    const Result<std::string> failed = snapshots.Take(manifest, rank, saving, tensors, {});
    EXPECT_TRUE(failed.ok()) << failed.status().message();
    return failed.ok() ? *failed : "";
  }
  void TakeAll(const std::vector<std::string>& workers, const std::vector<int64_t>& steps,
               int64_t saving) {
    Run(workers, [&](PeerSnapshots& snapshots, int rank) {
      for (const int64_t step : steps) EXPECT_EQ(Take(snapshots, rank, step, saving), "");
    });
  }

  /// The step that an attempt there goes on from, or -1; with the warning of rank 0.
  int64_t Restore(const std::vector<std::string>& workers) {
    int64_t step = -1;
    Run(workers, [&](PeerSnapshots& snapshots, int rank) {
      const Result<std::optional<int64_t>> found = snapshots.Restore();
      EXPECT_TRUE(found.ok()) << found.status().message();
      if (rank != 0 || !found.ok()) return;
      warning_ = snapshots.warning();
      step = found->value_or(-1);
    });
    return step;
  }

  /// The numbers in the checkpoint of `step`.
  std::vector<float> Numbers(int64_t step, int64_t saving) {
    const std::string folder = engine::CheckpointPath(root_ + "/runs/j", step);
    const auto manifest = engine::VerifyCheckpoint(env_, folder);
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    if (!manifest.ok()) return {};
    std::vector<float> numbers(static_cast<size_t>(saving));
    std::vector<NamedTensor> targets;
    for (int64_t rank = 0; rank < saving; ++rank) {
      targets.push_back({"w" + std::to_string(rank),
                         TensorView(&numbers[static_cast<size_t>(rank)], DType::kF32, {1})});
    }
    const Status loaded = engine::LoadTensors(env_, folder, *manifest, targets);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    return numbers;
  }

  Env& env_ = Env::Posix();
  std::string root_;
  int64_t epoch_ = 0;
  std::string warning_;
};

TEST_F(PeerSnapshotsTest, TheLossOfEitherMachineLosesNothing) {
  for (const char* lost : {"a", "b"}) {
    SCOPED_TRACE(lost);
    SetUp();
    TakeAll({"a", "a", "b", "b"}, {5, 6, 7}, 4);
    fs::remove_all(root_ + "/" + lost);
    const std::string left = *lost == 'a' ? "b" : "a";
    EXPECT_EQ(Restore({"c", left, "c", left}), 7);
    EXPECT_THAT(Numbers(7, 4), ElementsAre(700, 701, 702, 703));
    const auto checkpoints = engine::ListCheckpoints(env_, root_ + "/runs/j");
    ASSERT_TRUE(checkpoints.ok());
    ASSERT_EQ(checkpoints->size(), 1u);
    EXPECT_TRUE(checkpoints->front().verified);
    EXPECT_EQ(Restore({"c", left, "c", left}), -1) << "it is a checkpoint now";
  }
}

TEST_F(PeerSnapshotsTest, FewerRanksGoOnFromWhatMoreHaveKept) {
  TakeAll({"a", "a", "b", "b"}, {3}, 4);
  fs::remove_all(root_ + "/b");
  EXPECT_EQ(Restore({"a"}), 3);
  EXPECT_THAT(Numbers(3, 4), ElementsAre(300, 301, 302, 303));
}

TEST_F(PeerSnapshotsTest, OfStateThatAllHaveOneFileIsKeptTwice) {
  TakeAll({"a", "b", "c"}, {4}, 1);
  fs::remove_all(root_ + "/a");
  EXPECT_EQ(Restore({"d", "b", "c"}), 4);
  EXPECT_THAT(Numbers(4, 1), ElementsAre(400));
}

TEST_F(PeerSnapshotsTest, AreNotUsedWhenFilesAreMissingOrOlderThanACheckpoint) {
  TakeAll({"a", "a", "b", "b"}, {5}, 4);
  fs::remove_all(root_ + "/a");
  fs::remove_all(root_ + "/b");
  EXPECT_EQ(Restore({"a", "b"}), -1);
  TakeAll({"a", "a", "b", "b"}, {8}, 4);
  ASSERT_EQ(Restore({"a", "b"}), 8);
  TakeAll({"a", "a", "b", "b"}, {6}, 4);
  EXPECT_EQ(Restore({"a", "b"}), -1) << "the checkpoint of step 8 is newer";
  EXPECT_EQ(warning_, "");
}

TEST_F(PeerSnapshotsTest, TheOneBeforeIsUsedWhenTheNewestIsNotWhole) {
  TakeAll({"a", "a", "b", "b"}, {5, 6}, 4);
  fs::remove_all(root_ + "/b");
  for (const char* rank : {"rank-0", "rank-1"}) {
    const std::string folder = root_ + "/a/j.j/" + rank + "/step-00000006-of-4";
    ASSERT_TRUE(fs::exists(folder));
    if (rank == std::string("rank-0")) fs::remove_all(folder);
  }
  EXPECT_EQ(Restore({"a", "c"}), 5);
  EXPECT_THAT(Numbers(5, 4), ElementsAre(500, 501, 502, 503));
}

TEST_F(PeerSnapshotsTest, ADamagedOneIsNotUsed) {
  TakeAll({"a", "b"}, {5}, 2);
  fs::remove_all(root_ + "/b");
  for (const fs::directory_entry& entry :
       fs::directory_iterator(root_ + "/a/j.j/rank-0/step-00000005-of-2")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }
  EXPECT_EQ(Restore({"a", "c"}), -1);
  EXPECT_THAT(warning_, HasSubstr("the snapshot of step 5 was not used: rank 0: "));
  EXPECT_TRUE(engine::ListCheckpoints(env_, root_ + "/runs/j")->empty());
}

TEST_F(PeerSnapshotsTest, NoneAreKeptWhereAWorkerHasNoMemoryForThem) {
  engine::RunRanks(2, seconds(20), [&](auto& group) {
    AttemptSpec spec = Spec({"a", "b"}, group.rank());
    fs::create_directories(spec.memory_dir);
    if (group.rank() == 1) spec.memory_dir.clear();
    auto snapshots = PeerSnapshots::Open(env_, spec, &group);
    ASSERT_TRUE(snapshots.ok()) << snapshots.status().message();
    EXPECT_EQ(Take(**snapshots, group.rank(), 3, 2), "rank 1: its worker has no folder in memory");
    const auto restored = (*snapshots)->Restore();
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(*restored, std::nullopt);
  });
  EXPECT_FALSE(fs::exists(root_ + "/a/j.j"));
}

TEST_F(PeerSnapshotsTest, TwoAreKeptAndNoneAfterTheEnd) {
  Run({"a", "b"}, [&](PeerSnapshots& snapshots, int rank) {
    for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(Take(snapshots, rank, step, 2), "");
    const auto names = env_.ListDir(root_ + (rank == 0 ? "/a/j.j/rank-0" : "/b/j.j/rank-1"));
    ASSERT_TRUE(names.ok());
    EXPECT_THAT(*names, testing::UnorderedElementsAre("step-00000004-of-2", "step-00000005-of-2"));
    EXPECT_TRUE(snapshots.Forget().ok());
  });
  EXPECT_FALSE(fs::exists(root_ + "/a/j.j"));
  EXPECT_FALSE(fs::exists(root_ + "/b/j.j"));
  EXPECT_EQ(Restore({"a", "b"}), -1);
}

}  // namespace
}  // namespace weft::trainer
