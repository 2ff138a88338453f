#include "coordinator/recovery/job_logic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/recovery/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(JobLogic, TheSummaryIsKeptWhicheverWorkerFinishesFirst) {
  for (const char* first : {"a", "b"}) {
    Life life;
    life.Dispatch({"a", "b"});
    for (std::string worker : {first, first[0] == 'a' ? "b" : "a"}) {
      PlacementReport report;
      report.worker_id = worker;
      report.epoch = 1;
      report.event = PlacementEvent::kFinished;
      if (worker == "a") report.summary_json = "{}";
      life.Take(ApplyReport(life.current, report, 2));
    }
    EXPECT_EQ(life.state(), JobState::kSucceeded);
    EXPECT_EQ(life.current.job.summary_json, "{}") << first;
  }
}

TEST(JobLogic, TwoWorkersTrainAndFinish) {
  Life life;
  life.Dispatch({"a", "a", "b"});
  EXPECT_EQ(life.state(), JobState::kStarting);
  ASSERT_EQ(life.current.attempt->placements.size(), 2u);
  EXPECT_EQ(life.current.attempt->placements[0].ranks, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(life.last.add_intents.size(), 2u);
  life.Report("a", PlacementEvent::kStarted);
  ASSERT_EQ(life.last.remove_intents.size(), 1u);
  EXPECT_EQ(life.last.remove_intents[0].worker_id, "a");
  life.Report("b", PlacementEvent::kTraining);
  EXPECT_EQ(life.state(), JobState::kRunning);
  life.Report("b", PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kRunning);
  life.Report("a", PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);
  EXPECT_EQ(life.current.attempt->reason, Reason::kCompleted);
}

TEST(JobLogic, LosingOneWorkerStopsTheOtherAndQueuesTheJobWhenItIsGone) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(InterruptAttempt(life.current, 1, Reason::kWorkerLost, "lease of b ran out", 3));
  EXPECT_EQ(life.state(), JobState::kRecovering);
  EXPECT_EQ(life.last.add_intents.size(), 2u);
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kRecovering) << "b may still be alive";
  life.Report("b", PlacementEvent::kLost);
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.job.reason, Reason::kWorkerLost);
  life.Dispatch({"a"});
  EXPECT_EQ(life.current.attempt->epoch, 2);
}

TEST(JobLogic, ReportsOfAnOlderEpochOnlyGoIntoTheHistory) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed);
  ASSERT_EQ(life.state(), JobState::kQueued);
  life.Dispatch({"b"});
  PlacementReport zombie{"a", 1, PlacementEvent::kFinished, Reason::kNone, "", ""};
  Result<Transaction> change = ApplyReport(life.current, zombie, 5);
  ASSERT_TRUE(change.ok());
  EXPECT_FALSE(change->job);
  EXPECT_FALSE(change->attempt);
  ASSERT_EQ(change->events.size(), 1u);
  EXPECT_EQ(change->events[0].kind, "late report");
}

TEST(JobLogic, AUserErrorEndsTheJobEvenWhenAPeerDiedOfItFirst) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "connection reset");
  EXPECT_EQ(life.state(), JobState::kRecovering);
  life.Report("a", PlacementEvent::kFailed, Reason::kUserError, "file is empty");
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kUserError);
  EXPECT_THAT(life.current.job.message, HasSubstr("file is empty"));
}

TEST(JobLogic, ARankThatComputesWrongIsTheReasonAlsoWhenItsPeersEndFirst) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "a peer ended");
  life.Report("a", PlacementEvent::kFailed, Reason::kSilentCorruption, "rank 0 computes wrong");
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.job.reason, Reason::kSilentCorruption);
  EXPECT_THAT(life.current.job.message, HasSubstr("rank 0 computes wrong"));
}

TEST(JobLogic, OutOfMemoryIsRetriedOnce) {
  Life life(10);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed, Reason::kOutOfMemory);
  EXPECT_EQ(life.state(), JobState::kQueued);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed, Reason::kOutOfMemory);
  EXPECT_EQ(life.state(), JobState::kFailed);
}

TEST(JobLogic, GivesUpAfterMaxAttemptsAndARetryStartsTheCountAnew) {
  Life life(2);
  for (int i = 0; i < 2; ++i) {
    life.Dispatch({"a"});
    life.Report("a", PlacementEvent::kFailed, Reason::kRankDied, "signal 9");
  }
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kRetriesExhausted);
  EXPECT_THAT(life.current.job.message, HasSubstr("signal 9"));
  life.Take(RetryJob(life.current, 9));
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_FALSE(life.current.job.ended_at);
  life.Dispatch({"a"});
  EXPECT_EQ(life.current.attempt->epoch, 3);
  life.Report("a", PlacementEvent::kFailed);
  EXPECT_EQ(life.state(), JobState::kQueued);
}

TEST(JobLogic, TenLostMachinesDoNotEndAJobThatTrains) {
  Life life(2);
  for (int i = 0; i < 10; ++i) {
    life.LoseAMachine(/*steps=*/100);
    ASSERT_EQ(life.state(), JobState::kQueued) << i << ": " << life.current.job.message;
    EXPECT_THAT(life.current.job.message, HasSubstr("the next attempt starts in "));
  }
  // Both attempts that may fail otherwise are left.
  life.Dispatch({"a"});
  life.current.attempt->first_step = 1001;
  life.current.job.progress.checkpoint_step = 1100;
  life.Report("a", PlacementEvent::kFailed, Reason::kRankDied);
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_THAT(life.current.job.message, HasSubstr("attempt 2 of 2 starts in "));
}

TEST(JobLogic, MachinesLostInARowWithoutACheckpointEndTheJob) {
  Life life(3);
  for (int i = 0; i < 2; ++i) {
    life.LoseAMachine(/*steps=*/100);
    life.LoseAMachine(/*steps=*/0);
    ASSERT_EQ(life.state(), JobState::kQueued) << i;
  }
  life.LoseAMachine(/*steps=*/0);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kRetriesExhausted);
  EXPECT_THAT(life.current.job.message,
              AllOf(HasSubstr("gave up after 3 failures in a row with no checkpoint in between"),
                    HasSubstr("WORKER_LOST")));
  life.Take(RetryJob(life.current, 9));
  life.LoseAMachine(/*steps=*/0);
  EXPECT_EQ(life.state(), JobState::kQueued) << "a user's retry starts the row anew";
}

TEST(JobLogic, AJobMayLimitTheFailuresOfMachines) {
  Life life(2);
  life.current.job.spec.retry.max_machine_failures = 3;
  for (int i = 0; i < 2; ++i) {
    life.LoseAMachine(/*steps=*/100);
    EXPECT_EQ(life.state(), JobState::kQueued);
  }
  life.LoseAMachine(/*steps=*/100);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_THAT(life.current.job.message,
              HasSubstr("gave up after 3 attempts that machines ended, as "
                        "retry.max_machine_failures says"));
}

TEST(JobLogic, ABrokenGpuIsTheReasonAlsoWhenItsPeersEndFirst) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "a peer ended");
  life.Report("a", PlacementEvent::kFailed, Reason::kDeviceFailed, "GPU 0: XID 79");
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.job.reason, Reason::kDeviceFailed);
  EXPECT_EQ(life.current.job.budget_from, 1) << "none of its attempts";
}

TEST(JobLogic, CancelLetsRanksSaveAndASecondCancelKillsThem) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(CancelJob(life.current, 3));
  EXPECT_EQ(life.state(), JobState::kCancelling);
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_TRUE(life.last.add_intents[0].graceful);
  life.Take(CancelJob(life.current, 3));
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_FALSE(life.last.add_intents[0].graceful);
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kCancelled);
  EXPECT_EQ(life.current.job.reason, Reason::kCancelledByUser);
  life.Take(CancelJob(life.current, 4));
  EXPECT_TRUE(life.last.empty());
}

TEST(JobLogic, RanksThatFinishBeforeTheCancelReachesThemSucceed) {
  Life life;
  life.Dispatch({"a"});
  life.Take(CancelJob(life.current, 3));
  life.Report("a", PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);
}

TEST(JobLogic, AnUnaskedStopLetsTheOthersSaveAndDoesNotCount) {
  Life life(1);
  for (int i = 0; i < 3; ++i) {
    life.Dispatch({"a", "b"});
    for (const char* worker : {"a", "b"}) {
      life.Report(worker, PlacementEvent::kStarted);
      life.Report(worker, PlacementEvent::kTraining);
    }
    life.Report("a", PlacementEvent::kStopped);
    EXPECT_EQ(life.state(), JobState::kRecovering);
    EXPECT_EQ(life.current.job.reason, Reason::kDrained);
    ASSERT_EQ(life.last.add_intents.size(), 1u);
    EXPECT_EQ(life.last.add_intents[0].worker_id, "b");
    EXPECT_TRUE(life.last.add_intents[0].graceful) << "it may be the one that writes";
    life.Report("b", PlacementEvent::kStopped);
    EXPECT_EQ(life.state(), JobState::kQueued);
    EXPECT_EQ(life.current.attempt->reason, Reason::kDrained);
    EXPECT_FALSE(RetryAt(life.current)) << "it goes on at once";
  }
}

TEST(JobLogic, ADrainStopsAllRanksGracefullyOnce) {
  for (bool training : {true, false}) {
    Life life;
    life.Dispatch({"a", "b"});
    for (const char* worker : {"a", "b"}) life.Report(worker, PlacementEvent::kStarted);
    if (training) life.Report("a", PlacementEvent::kTraining);
    life.Take(DrainAttempt(life.current, 1, "worker a drains", 3));
    EXPECT_EQ(life.state(), JobState::kRecovering);
    ASSERT_EQ(life.last.add_intents.size(), 2u);
    for (const IntentRecord& intent : life.last.add_intents) EXPECT_TRUE(intent.graceful);
    life.Take(DrainAttempt(life.current, 1, "worker b drains", 3));
    EXPECT_TRUE(life.last.empty());
    life.Report("b", PlacementEvent::kStopped);
    EXPECT_TRUE(life.last.add_intents.empty()) << "nobody kills a";
  }
}

TEST(JobLogic, RanksThatBreakWhileTheyDrainAreNoFailureButBadNumbersAre) {
  Life life(1);
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(DrainAttempt(life.current, 1, "worker a drains", 3));
  life.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "lost rank 0");
  EXPECT_TRUE(life.last.add_intents.empty()) << "a may still be saving";
  life.Report("a", PlacementEvent::kLost, Reason::kWorkerLost);
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.attempt->reason, Reason::kDrained);

  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(DrainAttempt(life.current, 2, "worker a drains", 3));
  life.Report("b", PlacementEvent::kFailed, Reason::kNumerics, "diverged");
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_FALSE(life.last.add_intents[0].graceful);
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kNumerics);
}

TEST(JobLogic, RanksThatWaitForOnesThatNeverStartAreKilled) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kStarted);
  life.Report("b", PlacementEvent::kStopped, Reason::kNone, "the worker is shutting down");
  EXPECT_EQ(life.current.job.reason, Reason::kDrained);
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_EQ(life.last.add_intents[0].worker_id, "a");
  EXPECT_FALSE(life.last.add_intents[0].graceful);
}

TEST(JobLogic, ACancelOfADrainingJobStillLetsItSave) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(DrainAttempt(life.current, 1, "worker a drains", 3));
  life.Take(CancelJob(life.current, 4));
  EXPECT_EQ(life.state(), JobState::kCancelling);
  EXPECT_TRUE(life.last.add_intents.at(0).graceful);
}

TEST(JobLogic, RanksThatDoNotStopAreKilledAndThatIsSaid) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(CancelJob(life.current, 3));
  life.Report("a", PlacementEvent::kStopped);
  life.Take(KillAttempt(life.current, 1, "ranks did not stop within 60 s: they are killed", 63));
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_EQ(life.last.add_intents[0].worker_id, "b");
  EXPECT_FALSE(life.last.add_intents[0].graceful);
  EXPECT_EQ(life.last.events.at(0).kind, "kill");
  EXPECT_THAT(life.current.job.message, HasSubstr("did not stop within 60 s"));
  life.Report("b", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kCancelled);
  life.Take(KillAttempt(life.current, 1, "late", 64));
  EXPECT_TRUE(life.last.empty());
}

TEST(JobLogic, AHungAttemptIsKilledCountsAndIsTriedAgainLater) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(InterruptAttempt(life.current, 1, Reason::kHung, "no step for 75 s", 3));
  EXPECT_FALSE(life.last.add_intents.at(0).graceful);
  EXPECT_EQ(life.last.events.back().kind, "hung");
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.attempt->reason, Reason::kHung);
  ASSERT_TRUE(RetryAt(life.current));
  EXPECT_GT(*RetryAt(life.current), *life.current.attempt->ended_at);
  EXPECT_THAT(life.current.job.message,
              AllOf(HasSubstr("no step for 75 s"), HasSubstr("attempt 2 of 3 starts in ")));
  EXPECT_EQ(life.last.events.back().kind, "retry");
}

TEST(JobLogic, AUsersRetryDoesNotWait) {
  Life life(1);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed, Reason::kRankDied);
  EXPECT_EQ(life.state(), JobState::kFailed);
  life.Take(RetryJob(life.current, 9));
  EXPECT_FALSE(RetryAt(life.current));
}

TEST(JobLogic, RepeatedReportsChangeNothing) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Report("a", PlacementEvent::kTraining);
  EXPECT_TRUE(life.last.empty());
  life.Report("a", PlacementEvent::kStarted);
  EXPECT_TRUE(life.last.empty());
}

TEST(JobLogic, ForABetterPlanRanksSaveAndItIsNoFailure) {
  Life life(2);
  for (int i = 0; i < 3; ++i) {
    life.Dispatch({"a", "b"});
    life.Report("a", PlacementEvent::kTraining);
    life.Take(ReplanAttempt(life.current, life.current.job.last_epoch, "2 to 4 ranks", 3));
    EXPECT_EQ(life.state(), JobState::kRecovering);
    EXPECT_EQ(life.current.job.message, "2 to 4 ranks");
    ASSERT_EQ(life.last.add_intents.size(), 2u);
    for (const IntentRecord& intent : life.last.add_intents) {
      EXPECT_EQ(intent.kind, IntentKind::kStop);
      EXPECT_TRUE(intent.graceful);
    }
    life.Report("a", PlacementEvent::kStopped);
    EXPECT_TRUE(life.last.add_intents.empty()) << "b saves on";
    life.Report("b", PlacementEvent::kStopped);
    EXPECT_EQ(life.state(), JobState::kQueued) << i;
    EXPECT_EQ(life.current.attempt->reason, Reason::kReplanned);
    EXPECT_EQ(life.current.attempt->message, "2 to 4 ranks");
  }
  // Both attempts that may fail are left.
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed);
  EXPECT_EQ(life.state(), JobState::kQueued);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_THAT(life.current.job.message, HasSubstr("gave up after 2 attempts"));
}

TEST(JobLogic, OnlyTheRunningAttemptIsReplanned) {
  Life life;
  EXPECT_TRUE(ReplanAttempt(life.current, 1, "", 1)->empty());
  life.Dispatch({"a"});
  EXPECT_TRUE(ReplanAttempt(life.current, 1, "", 1)->empty()) << "STARTING";
  life.Report("a", PlacementEvent::kTraining);
  EXPECT_TRUE(ReplanAttempt(life.current, 2, "", 1)->empty()) << "another attempt";
  life.Take(ReplanAttempt(life.current, 1, "", 1));
  EXPECT_TRUE(ReplanAttempt(life.current, 1, "", 1)->empty()) << "once";
  life.Take(CancelJob(life.current, 2));
  EXPECT_TRUE(ReplanAttempt(life.current, 1, "", 1)->empty()) << "CANCELLING";
}

TEST(JobLogic, ARankThatDiesWhileTheOthersSaveForABetterPlanIsAFailure) {
  Life life(1);
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(ReplanAttempt(life.current, 1, "2 to 4 ranks", 3));
  life.Report("b", PlacementEvent::kFailed, Reason::kRankDied, "signal 9");
  ASSERT_FALSE(life.last.add_intents.empty()) << "a waits for b in vain";
  EXPECT_EQ(life.last.add_intents[0].worker_id, "a");
  EXPECT_FALSE(life.last.add_intents[0].graceful);
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.attempt->reason, Reason::kRankDied);
}

TEST(JobLogic, ACancelWhileRanksSaveForABetterPlanLetsThemSave) {
  Life life;
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(ReplanAttempt(life.current, 1, "1 to 2 ranks", 3));
  life.Take(CancelJob(life.current, 4));
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_TRUE(life.last.add_intents[0].graceful);
  life.Report("a", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kCancelled);
  EXPECT_EQ(life.current.attempt->reason, Reason::kCancelledByUser);
}

TEST(JobLogic, RanksThatFinishBeforeTheyCanBeStoppedForABetterPlanSucceed) {
  Life life;
  life.Dispatch({"a", "b"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(ReplanAttempt(life.current, 1, "2 to 4 ranks", 3));
  life.Report("a", PlacementEvent::kFinished);
  life.Report("b", PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);
  EXPECT_EQ(life.current.attempt->reason, Reason::kCompleted);
}

TEST(JobLogic, OnlyQueuedJobsAreDispatchedAndOnlyEndedOnesRetried) {
  Life life;
  EXPECT_EQ(RetryJob(life.current, 1).status().code(), StatusCode::kConflict);
  life.Dispatch({"a"});
  EXPECT_EQ(DispatchAttempt(life.current, Plan(), 1).status().code(), StatusCode::kConflict);
}

/// A life of a job with phases, whose attempts are kept as the store keeps them.
class LifeInPhases : public Life {
 public:
  explicit LifeInPhases(size_t phases) {
    current.job.spec.phases.resize(phases);
    for (PhaseSpec& phase : current.job.spec.phases) phase.steps = 10;
  }
  /// One worker runs the phase to an end of this kind.
  void RunPhase(PlacementEvent end) {
    Dispatch({"a"});
    Report("a", PlacementEvent::kTraining);
    Report("a", end);
    attempts.push_back(*current.attempt);
    current.phase = PhaseAfter(current.job.spec, attempts);
  }
  std::vector<AttemptRecord> attempts;
};

TEST(JobLogic, APhaseThatEndsQueuesTheJobForTheNextOne) {
  LifeInPhases life(3);
  life.RunPhase(PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.job.reason, Reason::kNone);
  EXPECT_EQ(life.current.job.message, "phase 1 of 3 is complete");
  EXPECT_FALSE(life.current.job.ended_at);
  EXPECT_EQ(life.current.attempt->reason, Reason::kCompleted);
  EXPECT_EQ(life.current.phase, 1u);
  EXPECT_EQ(LastOfPhase(life.current), nullptr) << "its plan is not that of the next phase";
  EXPECT_EQ(RetryAt(life.current), std::nullopt) << "nothing failed";
  life.RunPhase(PlacementEvent::kFailed);
  EXPECT_EQ(life.current.phase, 1u) << "the same one again";
  EXPECT_EQ(LastOfPhase(life.current)->epoch, 2);
  EXPECT_EQ(AttemptsAtPhase(life.attempts).size(), 1u);
  life.RunPhase(PlacementEvent::kFinished);
  life.RunPhase(PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);
  EXPECT_EQ(life.current.job.reason, Reason::kCompleted);
  EXPECT_EQ(life.current.job.message, "");
  EXPECT_EQ(PhaseAfter(life.current.job.spec, life.attempts), 2u) << "the last one";
}

TEST(JobLogic, EachPhaseMayBeTriedAsOften) {
  LifeInPhases life(2);  // three attempts
  for (int i = 0; i < 2; ++i) life.RunPhase(PlacementEvent::kFailed);
  life.RunPhase(PlacementEvent::kFinished);
  for (int i = 0; i < 2; ++i) {
    life.RunPhase(PlacementEvent::kFailed);
    EXPECT_EQ(life.state(), JobState::kQueued);
  }
  life.RunPhase(PlacementEvent::kFailed);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kRetriesExhausted);
  EXPECT_THAT(life.current.job.message, HasSubstr("gave up after 3 attempts"));
}

TEST(JobLogic, ACancelledPhaseThatEndsIsCompleteAndNoOtherStarts) {
  LifeInPhases life(2);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kTraining);
  life.Take(CancelJob(life.current, 3));
  life.Report("a", PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kCancelled);
  EXPECT_EQ(life.current.job.reason, Reason::kCancelledByUser);
  EXPECT_EQ(life.current.job.message, "cancelled by the user; phase 1 of 2 is complete");
  life.current.phase = PhaseAfter(life.current.job.spec, std::vector{*life.current.attempt});
  life.Take(RetryJob(life.current, 4));
  life.RunPhase(PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);
}

}  // namespace
}  // namespace weft::coordinator
