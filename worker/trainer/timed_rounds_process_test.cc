// Ranks of different speed that make rounds by time, as processes: one that is slow, killed,
// resumed together, alone and with others, and with bad data on one of them.
#include "worker/trainer/testing/trainer_process.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "worker/engine/checkpoint/manifest.h"

namespace weft::trainer {
namespace {

class TimedRoundsProcessTest : public TrainerProcessTest {
 protected:
  static constexpr int64_t kSteps = 60;

  AttemptSpec TimedSpec(const std::string& run, int64_t ranks) const {
    AttemptSpec spec = Spec(run);
    spec.job.train.steps = kSteps;
    spec.job.train.local_round_seconds = 0.6;
    spec.job.checkpoint.every_steps = 5;
    spec.job.checkpoint.keep_last = 20;
    Join(spec, ranks);
    return spec;
  }
  static void Join(AttemptSpec& spec, int64_t ranks) {
    spec.plan.mesh.data = spec.world_size = spec.job.resources.ranks = ranks;
    spec.plan.micro_batch = 1;
    spec.plan.accumulation_steps = spec.job.train.global_batch / ranks;
  }

  /// The last rank takes 120 ms a step more, and the others 30.
  static std::string Delay(const AttemptSpec& spec) {
    return spec.rank + 1 == spec.world_size ? "trainer.before_step=sleep:120"
                                            : "trainer.before_step=sleep:30";
  }
  /// Exit codes by rank; `more` failpoints are those of the last one.
  std::vector<int> Run(AttemptSpec spec, const std::string& more = "") {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      ranks.push_back(Start(spec, Delay(spec) + (spec.rank + 1 == spec.world_size ? more : "")));
    }
    std::vector<int> exit_codes;
    for (const auto& rank : ranks) exit_codes.push_back(rank->Wait());
    return exit_codes;
  }
  static std::vector<int> AllDone(const AttemptSpec& spec) {
    return std::vector<int>(static_cast<size_t>(spec.world_size), kExitDone);
  }

  engine::CheckpointManifest Manifest(const AttemptSpec& spec, int64_t step) {
    auto manifest = engine::ReadManifest(env_, engine::CheckpointPath(spec.run_dir, step));
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return manifest.ok() ? *manifest : engine::CheckpointManifest();
  }
  Json Summary(const AttemptSpec& spec) {
    return *ParseJson(*ReadFile(env_, spec.run_dir + "/summary.json"));
  }
  /// As many sequences as the steps say, to within a step; each was read once.
  void CheckSequences(const AttemptSpec& spec) {
    const engine::CheckpointManifest end = Manifest(spec, kSteps);
    const int64_t sequences = end.rounds.sequences, batch = spec.job.train.global_batch;
    EXPECT_GE(sequences, kSteps * batch);
    EXPECT_LT(sequences, kSteps * batch + batch);
    EXPECT_EQ(end.tokens, sequences * spec.job.model.context);
    EXPECT_EQ(Summary(spec)["tokens"], end.tokens);
    EXPECT_THAT(end.rounds.unread, testing::ElementsAre(sequences)) << "none is left out";
  }
};

TEST_F(TimedRoundsProcessTest, ASlowRankMakesFewerSteps) {
  const AttemptSpec spec = TimedSpec("unequal", 2);
  ASSERT_EQ(Run(spec), AllDone(spec));
  CheckSequences(spec);
  const std::vector<int64_t> updates = Manifest(spec, kSteps).rounds.updates;
  ASSERT_EQ(updates.size(), 2u);
  const double ratio = static_cast<double>(updates[0]) / static_cast<double>(updates[1]);
  EXPECT_GT(ratio, 1.4);
  EXPECT_LT(ratio, 8);
  const std::vector<double> losses = Losses(spec);
  EXPECT_GE(losses.size(), 3u) << "one for each round";
  EXPECT_LT(losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(losses.back(), losses.front()) << "it learns";
  EXPECT_TRUE(Summary(spec)["validation_loss_nats"].is_number());
  const Json summary = Summary(spec);
  EXPECT_LT(summary["median_step_seconds"].get<double>(), spec.job.train.local_round_seconds)
      << "of a step, not of a round";
  EXPECT_GE(summary["tokens_per_second"].get<double>(),
            summary["tokens"].get<double>() / summary["seconds"].get<double>())
      << "of both ranks";
}

TEST_F(TimedRoundsProcessTest, ARankThatDiesAmidARoundIsNoticedByTheOthers) {
  AttemptSpec spec = TimedSpec("noticed", 2);
  spec.job.train.local_round_seconds = 600;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
    ranks.push_back(Start(
        spec, spec.rank == 0 ? "trainer.before_step=sleep:20" : "trainer.before_step=crash@5"));
  }
  EXPECT_EQ(ranks[1]->Wait(), -SIGKILL);
  EXPECT_EQ(ranks[0]->Wait(), kExitRetry) << "long before the round ends";
}

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

TEST_F(TimedRoundsProcessTest, ARankIsKilledAmidARoundAndAnotherOneJoins) {
  signal(SIGPIPE, SIG_IGN);  // one of them may be sent something as it dies
  for (const int64_t dies : {2, 0}) {
    SCOPED_TRACE("rank " + std::to_string(dies));
    AttemptSpec spec = TimedSpec("peers-" + std::to_string(dies), 3);
    spec.job.train.global_batch = 6;
    Join(spec, 3);
    spec.job.resources.ranks = 0;
    spec.job.train.steps = 90;
    spec.job.checkpoint.every_steps = 1000;  // at the end alone, by those who are there then
    spec.membership = 1;
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

TEST_F(TimedRoundsProcessTest, AnyNumberOfRanksGoesOnFromTheLastOuterStep) {
  for (const auto& [before, after] : {std::pair<int64_t, int64_t>{2, 2}, {2, 1}, {2, 4}, {1, 2}}) {
    const std::string name = std::to_string(before) + "to" + std::to_string(after);
    SCOPED_TRACE(name);
    AttemptSpec spec = TimedSpec(name, before);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < before; ++spec.rank) {
      ranks.push_back(
          Start(spec, Delay(spec) + (spec.rank == 0 ? ",checkpoint.after_verify=crash@1" : "")));
    }
    EXPECT_EQ(ranks[0]->Wait(), -SIGKILL);
    ranks.clear();
    spec.rank = 0;
    spec.epoch = 2;
    Join(spec, after);
    ASSERT_EQ(Run(spec), AllDone(spec));
    CheckSequences(spec);
    const int64_t from = Summary(spec)["resumed_from_step"].get<int64_t>();
    EXPECT_GE(from, 5);
    EXPECT_LT(from, kSteps);
    const engine::RoundState start = Manifest(spec, from).rounds;
    const engine::RoundState end = Manifest(spec, kSteps).rounds;
    EXPECT_EQ(std::ssize(end.updates), after);
    for (size_t rank = 0; rank < end.updates.size(); ++rank) {
      EXPECT_GT(end.updates[rank], start.updates[rank % start.updates.size()])
          << "each goes on with the updates of the rank whose optimizer it has";
    }
    // Those after the outer step had trained on more; nothing of that counts.
    const std::vector<double> losses = Losses(spec);
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST_F(TimedRoundsProcessTest, ARankThatDropsAllItsUpdatesTakesAllBackAndThenEndsTheJob) {
  AttemptSpec spec = TimedSpec("bad", 2);
  spec.job.train.steps = 1000;
  spec.job.train.guard.skips_before_rollback = 2;
  spec.job.train.guard.max_rollbacks = 1;
  EXPECT_EQ(Run(spec, ",trainer.loss=error"), (std::vector<int>{kExitUserError, kExitUserError}));
  // Some of its updates dropped: the others go on, and so does it.
  AttemptSpec some = TimedSpec("some", 2);
  EXPECT_EQ(Run(some, ",trainer.loss=error@2"), AllDone(some));
  EXPECT_EQ(Summary(some)["skipped_steps"], 1) << "rank 0, too, knows of it";
  CheckSequences(some);
}

}  // namespace
}  // namespace weft::trainer
