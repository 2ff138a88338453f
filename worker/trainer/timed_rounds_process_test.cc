// Ranks of different speed that make rounds by time, as processes: one that is slow, killed,
// resumed together, alone and with others, and with bad data on one of them.
#include "worker/trainer/testing/timed_rounds.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace weft::trainer {
namespace {

class TimedRoundsProcessTest : public TimedRoundsFixture {
 protected:
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
