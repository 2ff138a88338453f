// Ranks that come and go, as processes: killed amid a round or a checkpoint, and new ones that
// join.
#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "worker/engine/checkpoint/catalog.h"
#include "worker/trainer/testing/timed_rounds.h"

namespace weft::trainer {
namespace {

/// The part of daemons and coordinator for ranks that come and go: the store, and who is there.
class PeerDaemons {
 public:
  ~PeerDaemons() {
    for (std::thread& thread : threads_) thread.join();
  }

  /// Serves the rank until its end.
  void Serve(int64_t number, Rank* rank) {
    {
      const std::lock_guard lock(mutex_);
      ranks_[number] = rank;
      if (number < 3) members_.push_back(number);
    }
    threads_.emplace_back([this, number, rank] {
      while (std::optional<RankMessage> message = rank->Next()) On(number, *message);
      Gone(number);
    });
  }

  /// Waits until a rank has said that it waits to join.
  void AwaitJoining(int64_t number) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return joining_.contains(number); }));
  }
  /// It is a member from now on.
  void TakeIn(int64_t number) {
    const std::lock_guard lock(mutex_);
    members_.push_back(number);
    SendMembership();
  }
  std::vector<std::string> failures() {
    const std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  void On(int64_t number, const RankMessage& message) {
    if (auto* set = std::get_if<StoreSetMessage>(&message)) {
      EXPECT_TRUE(store_.Set(set->key, set->value_hex).ok());
      Send(number, StoreReplyMessage{set->request_id, "", ""});
    } else if (auto* get = std::get_if<StoreGetMessage>(&message)) {
      const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::duration<double>(get->timeout_seconds));
      const Result<std::string> value = store_.Get(get->key, patience);
      Send(number, value.ok() ? StoreReplyMessage{get->request_id, "", *value}
                              : StoreReplyMessage{get->request_id, "not set in time", ""});
    } else if (auto* activity = std::get_if<ActivityMessage>(&message)) {
      const std::lock_guard lock(mutex_);
      if (activity->activity == "joining") joining_.insert(number);
      changed_.notify_all();
    } else if (auto* failed = std::get_if<FailedMessage>(&message)) {
      const std::lock_guard lock(mutex_);
      failures_.push_back("rank " + std::to_string(number) + ": " + failed->message);
    } else if (std::holds_alternative<FinishedMessage>(message)) {
      const std::lock_guard lock(mutex_);
      finished_.insert(number);
    }
  }
  void Gone(int64_t number) {
    const std::lock_guard lock(mutex_);
    ranks_.erase(number);
    if (finished_.contains(number)) return;
    std::erase(members_, number);
    gone_.push_back(number);
    SendMembership();
  }
  void Send(int64_t number, const DaemonMessage& message) {
    const std::lock_guard lock(mutex_);
    if (const auto rank = ranks_.find(number); rank != ranks_.end()) rank->second->Send(message);
  }
  /// Needs mutex_.
  void SendMembership() {
    ++membership_;
    for (const auto& [number, rank] : ranks_) {
      rank->Send(MembershipMessage{membership_, members_, gone_});
    }
  }

  engine::HashStore store_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::map<int64_t, Rank*> ranks_;
  std::vector<int64_t> members_, gone_;
  std::set<int64_t> joining_, finished_;
  std::vector<std::string> failures_;
  int64_t membership_ = 1;
};

class PeersProcessTest : public TimedRoundsFixture {
 protected:
  void SetUp() override {
    TimedRoundsFixture::SetUp();
    signal(SIGPIPE, SIG_IGN);  // one of them may be sent something as it dies
  }

  /// Of three ranks at first.
  AttemptSpec PeersSpec(const std::string& run, int64_t steps) const {
    AttemptSpec spec = TimedSpec(run, 3);
    spec.job.train.global_batch = 6;
    Join(spec, 3);
    spec.job.resources.ranks = 0;
    spec.job.train.steps = steps;
    spec.membership = 1;
    return spec;
  }
  /// Runs the ranks to the end, except `dies`, which is killed at that failpoint.
  void RunWithout(int64_t dies, const std::string& at, AttemptSpec spec) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 3; ++spec.rank) {
      ranks.push_back(
          Start(spec, "trainer.before_step=sleep:40" + (spec.rank == dies ? "," + at : ""), true));
    }
    PeerDaemons daemons;
    for (int64_t rank = 0; rank < 3; ++rank) {
      daemons.Serve(rank, ranks[static_cast<size_t>(rank)].get());
    }
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks[static_cast<size_t>(rank)]->Wait(), rank == dies ? -SIGKILL : kExitDone)
          << rank;
    }
    EXPECT_THAT(daemons.failures(), testing::IsEmpty());
  }
  /// All checkpoints are whole; how many ranks have saved each, oldest first.
  std::vector<size_t> WholeCheckpoints(const AttemptSpec& spec) {
    std::vector<size_t> files;
    const auto checkpoints = engine::ListCheckpoints(env_, spec.run_dir);
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status().message();
    for (const engine::CheckpointInfo& info : *checkpoints) {
      const auto manifest = engine::VerifyCheckpoint(env_, info.path);
      EXPECT_TRUE(manifest.ok()) << manifest.status().message();
      EXPECT_TRUE(info.verified) << info.path;
      if (manifest.ok()) files.push_back(manifest->files.size());
    }
    EXPECT_EQ(files.size(), Checkpoints(spec).size()) << "nothing else is left in the folder";
    return files;
  }
};

TEST_F(PeersProcessTest, ARankIsKilledAmidARoundAndAnotherOneJoins) {
  for (const int64_t dies : {2, 0}) {
    SCOPED_TRACE("rank " + std::to_string(dies));
    AttemptSpec spec = PeersSpec("peers-" + std::to_string(dies), 90);
    spec.job.checkpoint.every_steps = 1000;  // at the end alone, by those who are there then
    std::vector<std::unique_ptr<Rank>> ranks;
    const auto delay = [&](int64_t rank) {
      return rank == dies ? "trainer.before_step=sleep:40,trainer.loss=crash@25"
                          : "trainer.before_step=sleep:40";
    };
    for (spec.rank = 0; spec.rank < 3; ++spec.rank) {
      ranks.push_back(Start(spec, delay(spec.rank), true));
    }
    AttemptSpec joins = spec;
    joins.rank = 3;
    joins.joins = true;
    ranks.push_back(Start(joins, delay(3), true));
    {
      PeerDaemons daemons;
      for (int64_t rank = 0; rank < 4; ++rank) {
        daemons.Serve(rank, ranks[static_cast<size_t>(rank)].get());
      }
      daemons.AwaitJoining(3);
      // A survivor waits for a membership as soon as it has noticed.
      daemons.AwaitJoining(1);
      daemons.TakeIn(3);
      for (int64_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(ranks[static_cast<size_t>(rank)]->Wait(), rank == dies ? -SIGKILL : kExitDone)
            << rank;
      }
      EXPECT_THAT(daemons.failures(), testing::IsEmpty());
    }
    const engine::CheckpointManifest end = Manifest(spec, spec.job.train.steps);
    EXPECT_EQ(end.epoch, 1) << "no other attempt";
    EXPECT_EQ(end.world_size, 3);
    EXPECT_EQ(end.rounds.updates.size(), 3u);
    // Each sequence counts once, whoever read it; what was lost was read again.
    const int64_t sequences = end.rounds.sequences;
    EXPECT_GE(sequences, spec.job.train.steps * 6);
    EXPECT_EQ(end.tokens, sequences * spec.job.model.context);
    EXPECT_THAT(end.rounds.unread, testing::ElementsAre(sequences));
    const std::vector<double> losses = Losses(spec);
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_EQ(Summary(spec)["epoch"], 1) << "also where rank 0 was the one that died";
    EXPECT_EQ(Summary(spec)["resumed_from_step"], 0);
  }
}

TEST_F(PeersProcessTest, ACheckpointInFlightWhenARankIsKilledIsGivenUp) {
  const std::vector<std::pair<int64_t, std::string>> deaths = {
      {2, "checkpoint.before_share=crash@2"},  // the others have written, or will
      {0, "checkpoint.after_shards=crash@2"},  // all is there but the manifest
  };
  for (const auto& [dies, at] : deaths) {
    SCOPED_TRACE(at);
    AttemptSpec spec = PeersSpec(at.substr(0, at.find('=')), 60);
    spec.job.checkpoint.every_steps = 10;
    RunWithout(dies, at, spec);
    if (testing::Test::HasFailure()) return;
    EXPECT_EQ(Manifest(spec, 60).world_size, 2);
    EXPECT_EQ(Manifest(spec, 60).epoch, 1) << "no other attempt";
    EXPECT_EQ(Summary(spec)["steps"], 60);
    const std::vector<size_t> files = WholeCheckpoints(spec);
    ASSERT_GE(files.size(), 2u);
    EXPECT_EQ(files.front(), 3u) << "that of before";
    EXPECT_EQ(std::count(files.begin(), files.end(), 3u), 1) << "not the one that was given up";
    EXPECT_EQ(files.back(), 2u);
  }
}

TEST_F(PeersProcessTest, TheRanksThatAreLeftMakeTheLastCheckpoint) {
  // It alone is saved. All have trained to the end when the rank is killed.
  for (const auto& [dies, at] :
       {std::pair<int64_t, std::string>{0, "checkpoint.after_shards=crash"},
        {0, "checkpoint.before_verify=crash"},
        {1, "checkpoint.before_share=crash"}}) {
    SCOPED_TRACE(at);
    AttemptSpec spec = PeersSpec("last-" + at.substr(0, at.find('=')), 12);
    spec.job.checkpoint.every_steps = 1000;
    RunWithout(dies, at, spec);
    if (testing::Test::HasFailure()) return;
    EXPECT_EQ(WholeCheckpoints(spec).size(), 1u);
    EXPECT_EQ(Manifest(spec, 12).epoch, 1);
    EXPECT_EQ(Summary(spec)["steps"], 12) << "whoever is the first by then writes it";
  }
}

}  // namespace
}  // namespace weft::trainer
