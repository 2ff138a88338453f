// Ranks that come to a running attempt and leave it.
#include "coordinator/recovery/peers.h"

#include <gmock/gmock.h>

#include "coordinator/recovery/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// An attempt in rounds by time that trains with a rank on each worker.
class PeersTest : public ::testing::Test {
 protected:
  void Train(const std::vector<std::string>& workers, int64_t least = 0) {
    JobSpec& spec = life_.current.job.spec;
    spec.train.local_round_seconds = 10;
    spec.resources.min_ranks = least;
    Plan plan = OnWorkers(workers);
    plan.mesh.data = std::ssize(workers);
    plan.prediction.step_seconds = 1;
    life_.Take(DispatchAttempt(life_.current, plan, 1));
    for (const std::string& worker : workers) life_.Report(worker, PlacementEvent::kTraining);
    ASSERT_EQ(life_.state(), JobState::kRunning);
  }
  const AttemptRecord& attempt() const { return *life_.current.attempt; }
  std::string LastEvent() const {
    return life_.last.events.empty() ? "" : life_.last.events.back().text;
  }

  Life life_;
};

TEST_F(PeersTest, AJobWhoseNumberOfRanksIsGivenKeepsThem) {
  life_.current.job.spec.resources.ranks = 2;
  Train({"a", "b"});
  EXPECT_EQ(attempt().membership, 0);
  EXPECT_FALSE(MaySpare(life_.current, 1, "b"));
  life_.Report("b", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(life_.state(), JobState::kRecovering);
}

TEST_F(PeersTest, TheAttemptGoesOnWithoutALostRank) {
  Train({"a", "b", "c"});
  EXPECT_EQ(attempt().membership, 1);
  const int64_t budget = life_.current.job.budget_from;
  life_.Report("a", PlacementEvent::kFailed, Reason::kRankDied, "killed");
  EXPECT_EQ(life_.state(), JobState::kRunning);
  EXPECT_EQ(attempt().membership, 2);
  EXPECT_EQ(attempt().reason, Reason::kNone);
  EXPECT_THAT(LivingMembers(attempt()), ElementsAre(1, 2));
  EXPECT_THAT(GoneRanks(attempt()), ElementsAre(0));
  EXPECT_THAT(attempt().plan.rank_workers, ElementsAre("b", "c"));
  EXPECT_EQ(attempt().plan.mesh.data, 2);
  EXPECT_DOUBLE_EQ(attempt().plan.prediction.step_seconds, 1.5);
  EXPECT_TRUE(HasFirstRank(attempt(), attempt().placements[1])) << "b reports from now on";
  EXPECT_FALSE(HasFirstRank(attempt(), attempt().placements[0]));
  EXPECT_THAT(LastEvent(), HasSubstr("rank 0 on worker a"));
  EXPECT_THAT(life_.last.add_intents, IsEmpty()) << "nobody is stopped";
  life_.Report("b", PlacementEvent::kFinished);
  life_.Report("c", PlacementEvent::kFinished);
  EXPECT_EQ(life_.state(), JobState::kSucceeded);
  EXPECT_EQ(life_.current.job.last_epoch, 1);
  EXPECT_EQ(budget, 0) << "no attempt was used up";
}

TEST_F(PeersTest, WithFewerThanTheLeastTheAttemptEnds) {
  Train({"a", "b", "c"}, 2);
  life_.Report("c", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(life_.state(), JobState::kRunning);
  EXPECT_FALSE(MaySpare(life_.current, 1, "b"));
  life_.Report("b", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(life_.state(), JobState::kRecovering);
  ASSERT_EQ(life_.last.add_intents.size(), 1u) << "a is stopped";
  EXPECT_EQ(life_.last.add_intents[0].worker_id, "a");
  life_.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life_.state(), JobState::kQueued);
}

TEST_F(PeersTest, AnErrorOfTheUserIsOneOfAllRanks) {
  Train({"a", "b"});
  life_.Report("a", PlacementEvent::kFailed, Reason::kNumerics, "diverged");
  EXPECT_EQ(life_.state(), JobState::kRecovering);
}

TEST_F(PeersTest, ARankJoinsWhenItIsReadyWithANumberOfItsOwn) {
  Train({"a", "b"});
  life_.Report("b", PlacementEvent::kLost, Reason::kWorkerLost);
  life_.Take(AddPeer(life_.current, 1, "a", 3));
  EXPECT_TRUE(life_.last.empty()) << "a has a rank";
  life_.Take(AddPeer(life_.current, 1, "b", 3));
  ASSERT_EQ(attempt().placements.size(), 2u) << "b takes its own place";
  EXPECT_THAT(attempt().placements[1].ranks, ElementsAre(2)) << "no number comes twice";
  EXPECT_EQ(attempt().placements[1].part, PlacementPart::kJoining);
  EXPECT_EQ(attempt().membership, 2) << "not before it is ready";
  EXPECT_THAT(JoiningRanks(attempt()), ElementsAre(2));
  ASSERT_EQ(life_.last.add_intents.size(), 1u);
  EXPECT_EQ(life_.last.add_intents[0].kind, IntentKind::kStart);
  life_.Report("b", PlacementEvent::kStarted);
  life_.Take(TakeInPeer(life_.current, 1, "b", 4));
  EXPECT_EQ(attempt().membership, 3);
  EXPECT_THAT(LivingMembers(attempt()), ElementsAre(0, 2));
  EXPECT_THAT(JoiningRanks(attempt()), IsEmpty());
  EXPECT_THAT(attempt().plan.rank_workers, ElementsAre("a", "b"));
  life_.Take(TakeInPeer(life_.current, 1, "b", 5));
  EXPECT_TRUE(life_.last.empty()) << "once";
}

TEST_F(PeersTest, WhatIsSaidLateOfRanksBeforeIsNotOfThoseThatCameAfterThem) {
  Train({"a", "b"});
  life_.Report("b", PlacementEvent::kLost, Reason::kWorkerLost);
  life_.Take(AddPeer(life_.current, 1, "b", 3));
  PlacementReport late{"b", 1, PlacementEvent::kFailed, Reason::kRankDied, "killed", ""};
  late.first_rank = 1;
  life_.Take(ApplyReport(life_.current, late, 4));
  EXPECT_THAT(LastEvent(), HasSubstr("killed")) << "it is noted";
  EXPECT_EQ(attempt().placements[1].state, PlacementState::kDispatched);
  late.first_rank = 2;
  life_.Take(ApplyReport(life_.current, late, 5));
  EXPECT_EQ(attempt().placements[1].state, PlacementState::kFailed);
}

TEST_F(PeersTest, OneThatFailsBeforeItHasJoinedHarmsNobody) {
  Train({"a", "b"}, 2);
  life_.Take(AddPeer(life_.current, 1, "c", 3));
  life_.Report("c", PlacementEvent::kFailed, Reason::kUserError, "no such file");
  EXPECT_EQ(life_.state(), JobState::kRunning);
  EXPECT_EQ(attempt().membership, 1);
  EXPECT_EQ(attempt().placements[2].part, PlacementPart::kLeft);
}

TEST_F(PeersTest, RanksThatAreLetGoLiveUntilTheNextOuterStep) {
  Train({"a", "b", "c"}, 2);
  life_.Take(LetPeersGo(life_.current, 1, {"b", "c"}, "worker b drains", 3));
  EXPECT_EQ(attempt().membership, 2) << "c cannot be spared any more";
  EXPECT_THAT(LivingMembers(attempt()), ElementsAre(0, 2));
  EXPECT_THAT(GoneRanks(attempt()), IsEmpty());
  EXPECT_THAT(life_.last.add_intents, IsEmpty()) << "they leave by themselves";
  life_.Report("b", PlacementEvent::kStopped);
  EXPECT_EQ(life_.state(), JobState::kRunning) << "it was to stop";
  EXPECT_EQ(attempt().membership, 2);
}

TEST_F(PeersTest, OneThatIsLostBeforeItHasLeftIsMadeKnown) {
  // The others may be writing a checkpoint with it, and its connection need not tell them.
  Train({"a", "b", "c"});
  life_.Take(LetPeersGo(life_.current, 1, {"c"}, "worker c drains", 3));
  EXPECT_EQ(attempt().membership, 2);
  life_.Report("c", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(life_.state(), JobState::kRunning);
  EXPECT_EQ(attempt().membership, 3);
  EXPECT_THAT(LivingMembers(attempt()), ElementsAre(0, 1));
  EXPECT_THAT(GoneRanks(attempt()), ElementsAre(2));
  EXPECT_EQ(attempt().plan.mesh.data, 2);
  EXPECT_THAT(LastEvent(), HasSubstr("rank 2 on worker c was lost as it left"));
}

TEST_F(PeersTest, TheAttemptEndsWhenTheFirstRankIsLostAfterOthersHaveEnded) {
  for (const PlacementEvent end : {PlacementEvent::kFailed, PlacementEvent::kLost}) {
    life_ = Life();
    Train({"a", "b", "c"});
    life_.Report("b", PlacementEvent::kFinished);
    EXPECT_FALSE(MaySpare(life_.current, 1, "a")) << "it has not said how the training ended";
    EXPECT_TRUE(MaySpare(life_.current, 1, "c"));
    life_.Report("a", end, Reason::kRankDied, "killed");
    EXPECT_EQ(life_.state(), JobState::kRecovering);
    EXPECT_EQ(attempt().membership, 1);
    life_.Report("c", PlacementEvent::kFinished);
    EXPECT_EQ(life_.state(), JobState::kQueued) << "the next attempt reports it";
  }
}

TEST_F(PeersTest, AnotherRankThatIsLostAfterTheFirstHasEndedHarmsNobody) {
  Train({"a", "b"});
  life_.Report("a", PlacementEvent::kFinished);
  life_.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "killed");
  EXPECT_EQ(life_.state(), JobState::kSucceeded);
}

TEST_F(PeersTest, TheEndStopsThoseThatAreYetToJoin) {
  Train({"a", "b"});
  life_.Take(AddPeer(life_.current, 1, "c", 3));
  life_.Report("a", PlacementEvent::kFinished);
  ASSERT_EQ(life_.last.add_intents.size(), 1u);
  EXPECT_EQ(life_.last.add_intents[0].worker_id, "c");
  EXPECT_EQ(life_.last.add_intents[0].kind, IntentKind::kStop);
  life_.Report("b", PlacementEvent::kFinished);
  EXPECT_EQ(life_.state(), JobState::kRunning) << "c is there still";
  life_.Report("c", PlacementEvent::kStopped);
  EXPECT_EQ(life_.state(), JobState::kSucceeded);
}

TEST_F(PeersTest, AStopIsOneOfAllRanks) {
  Train({"a", "b"});
  life_.Take(AddPeer(life_.current, 1, "c", 3));
  life_.Take(PauseJob(life_.current, 4));
  EXPECT_EQ(life_.last.add_intents.size(), 3u);
  life_.Report("b", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(attempt().membership, 1) << "nobody goes on any more";
}

}  // namespace
}  // namespace weft::coordinator
