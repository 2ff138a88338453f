// What ranks that come and go do together in a membership: a checkpoint that is under way when one
// of them is lost, or leaves.
#include "worker/trainer/round_peers.h"

#include <barrier>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/testing.h"
#include "worker/engine/checkpoint/writer.h"
#include "worker/engine/comm/hash_store.h"

namespace weft::trainer {
namespace {

using engine::CheckpointPath;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::UnorderedElementsAre;

const std::string kRun = "/runs/j-1";
/// What is noticed takes less; what is not takes half an hour.
constexpr seconds kSoon(60);

/// The daemon of a rank, as far as memberships go.
class FakeDaemon : public Reporter {
 public:
  void Report(const RankMessage&) override {}
  bool StopRequested() override { return false; }
  void WatchMembership(std::function<void(const MembershipMessage&)> told) override {
    const std::lock_guard lock(mutex_);
    watcher_ = std::move(told);
  }
  void Announce(const MembershipMessage& membership) {
    const std::lock_guard lock(mutex_);
    if (watcher_) watcher_(membership);
  }

 private:
  std::mutex mutex_;
  std::function<void(const MembershipMessage&)> watcher_;
};

/// A rank with its group and its writer of checkpoints, in one thread of the test.
class Peer {
 public:
  Peer(Env& env, engine::Store& store, int64_t number, int64_t of)
      : env_(env), peers_(daemon_, store, MembersOf(number, of)) {}
  ~Peer() { peers_.Watch(nullptr); }

  void Connect() {
    engine::CollectiveOptions options;
    options.connect_timeout = seconds(20);
    auto group = peers_.Connect(options);
    ASSERT_TRUE(group.ok()) << group.status().message();
    group_ = *std::move(group);
    peers_.Watch(group_.get());
    engine::CheckpointWriterOptions writer{&env_, kRun, 1, 10};
    const engine::RoundMembers& members = peers_.members();
    writer.peers.emplace(&peers_.store(), engine::PlaceAmong(members.members, members.number),
                         std::ssize(members.members));
    auto opened = engine::CheckpointWriter::Open(std::move(writer));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    writer_ = *std::move(opened);
  }
  /// What its share came to.
  Status Save(int64_t step) {
    engine::TestState state(step);
    std::vector<engine::NamedTensor> tensors = state.Tensors();
    for (engine::NamedTensor& tensor : tensors) {
      tensor.name = "rank" + std::to_string(peers_.members().number) + "/" + tensor.name;
    }
    WEFT_RETURN_IF_ERROR(writer_->Save(engine::TestManifest(step), tensors).status());
    return writer_->Wait();
  }
  /// Its process is killed, as the others see it.
  void Die() { group_->Abort(); }
  /// It ends well, and the others need not stop for that.
  void Leave() {
    peers_.Watch(nullptr);
    writer_.reset();
    group_.reset();
  }
  void Announce(const MembershipMessage& membership) { daemon_.Announce(membership); }
  void Regroup(int64_t least) {
    peers_.Watch(nullptr);
    peers_.Leave();
    writer_.reset();
    const Result<bool> stays = peers_.Await(least, /*joins=*/false);
    ASSERT_TRUE(stays.ok()) << stays.status().message();
    ASSERT_TRUE(*stays);
    group_.reset();
    Connect();
  }
  RoundPeers& peers() { return peers_; }

 private:
  static engine::RoundMembers MembersOf(int64_t number, int64_t of) {
    engine::RoundMembers members{1, number, std::vector<int64_t>(static_cast<size_t>(of))};
    std::iota(members.members.begin(), members.members.end(), 0);
    return members;
  }

  Env& env_;
  FakeDaemon daemon_;
  RoundPeers peers_;
  std::unique_ptr<engine::Collective> group_;
  std::unique_ptr<engine::CheckpointWriter> writer_;
};

class RoundPeersTest : public testing::Test {
 protected:
  static constexpr int64_t kRanks = 3;

  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // as trainers do
    ASSERT_TRUE(env_.CreateDirs(kRun).ok());
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      peers_.push_back(std::make_unique<Peer>(env_, store_, rank, kRanks));
    }
  }

  /// Runs all ranks, connected, in a thread each.
  void Run(const std::function<void(Peer&, int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        PeerOf(rank).Connect();
        if (!HasFatalFailure()) body(PeerOf(rank), rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Peer& PeerOf(int64_t rank) { return *peers_[static_cast<size_t>(rank)]; }

  /// Of a whole checkpoint.
  size_t FilesOf(int64_t step) {
    const auto manifest = engine::VerifyCheckpoint(env_, CheckpointPath(kRun, step));
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return manifest.ok() ? manifest->files.size() : 0;
  }
  std::vector<std::string> Folders() { return *env_.ListDir(engine::CheckpointsFolder(kRun)); }

  /// Between the threads, not the ranks: it holds for one that is lost as soon as it is past it.
  std::barrier<> all_saved_{kRanks};
  FaultEnv env_;
  engine::HashStore store_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

/// The store of a rank that dies once the others know where it listens.
class StoreOfOneThatDies : public engine::Store {
 public:
  explicit StoreOfOneThatDies(engine::Store& store) : store_(store) {}
  Status Set(const std::string& key, std::string_view value) override {
    dead_ = dead_ || key.ends_with("/2");  // its addresses
    return store_.Set(key, value);
  }
  Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override {
    if (dead_) return AbortedError("it is dead");
    return store_.Get(key, timeout);
  }

 private:
  engine::Store& store_;
  bool dead_ = false;
};

TEST_F(RoundPeersTest, NobodyWaitsForARankThatDiedBeforeItConnected) {
  StoreOfOneThatDies store(store_);
  std::vector<std::thread> threads;
  for (const int64_t rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      engine::CollectiveOptions options;
      options.timeout = std::chrono::minutes(2);  // not what ends it
      const auto group = PeerOf(rank).peers().Connect(options);
      ASSERT_FALSE(group.ok());
      EXPECT_EQ(group.status().code(), StatusCode::kUnavailable) << group.status().message();
    });
  }
  const auto dead = Peer(env_, store, 2, kRanks).peers().Connect({});
  EXPECT_FALSE(dead.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the others wait for it
  const auto begin = steady_clock::now();
  for (const int64_t rank : {0, 1}) PeerOf(rank).Announce({2, {0, 1}, {2}});
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(steady_clock::now() - begin, kSoon);
}

/// How the others come to know that a rank is lost.
struct Loss {
  const char* name;
  int64_t rank;
  bool told;  ///< By the coordinator alone: its machine is silent. Else by its connections alone.
};

class LostPeerTest : public RoundPeersTest, public testing::WithParamInterface<Loss> {};

TEST_P(LostPeerTest, CostsTheCheckpointInFlightAndNoTime) {
  const int64_t lost = GetParam().rank, survivor = 3 - lost;
  const MembershipMessage without{2, {0, survivor}, {lost}};
  Run([&](Peer& peer, int64_t rank) {
    EXPECT_TRUE(peer.Save(10).ok());
    all_saved_.arrive_and_wait();
    if (rank == lost) {
      if (!GetParam().told) return peer.Die();
      for (const int64_t other : {int64_t{0}, survivor}) PeerOf(other).Announce(without);
      return;
    }
    const auto begin = steady_clock::now();
    const Status saved = peer.Save(20);
    EXPECT_LT(steady_clock::now() - begin, kSoon);
    if (rank == 0) {
      EXPECT_EQ(saved.code(), StatusCode::kUnavailable) << saved.message();
    }
    peer.Announce(without);
    peer.Regroup(2);
    if (HasFatalFailure()) return;
    const Status next = peer.Save(30);
    EXPECT_TRUE(next.ok()) << next.message();
  });
  EXPECT_EQ(FilesOf(10), 3u);
  EXPECT_EQ(FilesOf(30), 2u);
  EXPECT_THAT(Folders(), UnorderedElementsAre("step-00000010", "step-00000030"));
}

INSTANTIATE_TEST_SUITE_P(Losses, LostPeerTest,
                         testing::Values(Loss{"TheLastByItsConnection", 2, false},
                                         Loss{"AnotherByItsConnection", 1, false},
                                         Loss{"TheLastByTheCoordinator", 2, true}),
                         [](const auto& tested) { return tested.param.name; });

TEST_F(RoundPeersTest, WhatTheFirstRankLeftHalfWrittenIsNoCheckpoint) {
  Run([&](Peer& peer, int64_t rank) {
    if (rank == 0) {
      // It has the shares of all, and dies before it writes the manifest.
      ASSERT_TRUE(
          env_.CreateDirs(engine::CheckpointsFolder(kRun) + "/.tmp-step-00000010-epoch-1").ok());
      engine::CheckpointPeers share(&peer.peers().store(), 0, kRanks);
      share.Begin();
      ASSERT_TRUE(share.Invite().ok());
      const auto files = share.Files();
      ASSERT_TRUE(files.ok()) << files.status().message();
      ASSERT_EQ(files->size(), 2u);
      return peer.Die();
    }
    const Status share = peer.Save(10);
    EXPECT_TRUE(share.ok()) << share.message();
    EXPECT_FALSE(engine::LatestVerified(env_, kRun)->latest.has_value());
    peer.Announce({2, {1, 2}, {0}});
    peer.Regroup(2);
    if (HasFatalFailure()) return;
    const Status again = peer.Save(10);
    EXPECT_TRUE(again.ok()) << again.message();
  });
  EXPECT_EQ(FilesOf(10), 2u) << "of those who are there";
  EXPECT_THAT(Folders(), UnorderedElementsAre("step-00000010"));
}

TEST_F(RoundPeersTest, OneThatLeavesOnceItsShareIsWrittenIsNotMissed) {
  Run([&](Peer& peer, int64_t rank) {
    // Longer than the first rank waits before it asks whether the others are there.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const Status saved = peer.Save(10);
    EXPECT_TRUE(saved.ok()) << "rank " << rank << ": " << saved.message();
    if (rank == 2) peer.Leave();
  });
  EXPECT_EQ(FilesOf(10), 3u);
}

}  // namespace
}  // namespace weft::trainer
