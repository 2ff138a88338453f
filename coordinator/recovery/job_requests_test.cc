// Pauses, preemptions, time limits and budgets of failures by kind, as pure functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/recovery/job_logic.h"
#include "coordinator/recovery/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A job with a rank on each of two workers that trains.
Life Training(int64_t max_attempts = 3) {
  Life life(max_attempts);
  life.Dispatch({"a", "b"});
  for (const char* worker : {"a", "b"}) life.Report(worker, PlacementEvent::kTraining);
  EXPECT_EQ(life.state(), JobState::kRunning);
  return life;
}

void StopBoth(Life& life) {
  for (const char* worker : {"a", "b"}) life.Report(worker, PlacementEvent::kStopped);
}

TEST(Pause, SavesStopsAndWaitsUntilItIsResumed) {
  Life life = Training(1);
  life.Take(PauseJob(life.current, 3));
  EXPECT_EQ(life.state(), JobState::kPausing);
  ASSERT_EQ(life.last.add_intents.size(), 2u);
  for (const IntentRecord& intent : life.last.add_intents) EXPECT_TRUE(intent.graceful);
  life.Take(PauseJob(life.current, 3));
  EXPECT_TRUE(life.last.empty()) << "it is asked to already";
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kPaused);
  EXPECT_EQ(life.current.job.reason, Reason::kPausedByUser);
  EXPECT_THAT(life.current.job.message, HasSubstr("weft job resume"));
  EXPECT_FALSE(life.current.job.ended_at);
  EXPECT_EQ(DispatchAttempt(life.current, {}, 4).status().code(), StatusCode::kConflict);
  life.Take(ResumeJob(life.current, 5));
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(life.current.job.queued_at, 5);
  EXPECT_FALSE(RetryAt(life.current)) << "it goes on at once";
  life.Dispatch({"a", "b"});
  EXPECT_EQ(life.current.attempt->epoch, 2) << "the pause did not use up its only attempt";
}

TEST(Pause, OfAQueuedJobJustKeepsItFromStarting) {
  Life life;
  life.Take(PauseJob(life.current, 1));
  EXPECT_EQ(life.state(), JobState::kPaused);
  life.Take(ResumeJob(life.current, 2));
  EXPECT_EQ(life.state(), JobState::kQueued);
  EXPECT_EQ(ResumeJob(life.current, 3).status().code(), StatusCode::kConflict);
}

TEST(Pause, OfAJobThatRecoversTakesEffectWhenItsRanksAreGone) {
  Life life = Training();
  life.Take(InterruptAttempt(life.current, 1, Reason::kWorkerLost, "lease of b ran out", 3));
  life.Take(PauseJob(life.current, 4));
  EXPECT_EQ(life.state(), JobState::kPausing);
  EXPECT_TRUE(life.last.add_intents.empty()) << "the ranks are being killed already";
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kPaused);
  EXPECT_EQ(life.current.attempt->reason, Reason::kWorkerLost);
  EXPECT_THAT(life.current.job.message, HasSubstr("lease of b ran out"));
}

TEST(Pause, ThatIsTakenBackWhileRanksStopLetsTheJobGoOn) {
  Life life = Training(1);
  life.Take(PauseJob(life.current, 3));
  life.Take(ResumeJob(life.current, 4));
  EXPECT_EQ(life.state(), JobState::kRecovering);
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kQueued);
}

TEST(Pause, OfRanksThatFinishOrFailForGoodMeanwhileEndsTheJob) {
  Life life = Training();
  life.Take(PauseJob(life.current, 3));
  for (const char* worker : {"a", "b"}) life.Report(worker, PlacementEvent::kFinished);
  EXPECT_EQ(life.state(), JobState::kSucceeded);

  life = Training();
  life.Take(PauseJob(life.current, 3));
  life.Report("a", PlacementEvent::kFailed, Reason::kUserError, "file is empty");
  ASSERT_EQ(life.last.add_intents.size(), 1u);
  EXPECT_FALSE(life.last.add_intents[0].graceful) << "b cannot save any more";
  life.Report("b", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kUserError);
}

TEST(Pause, OfARankThatDiesWhileItSavesCountsAsAFailure) {
  Life life = Training();
  life.Take(PauseJob(life.current, 3));
  life.Report("a", PlacementEvent::kFailed, Reason::kRankDied, "signal 9");
  life.Report("b", PlacementEvent::kStopped);
  EXPECT_EQ(life.state(), JobState::kPaused);
  EXPECT_EQ(life.current.attempt->reason, Reason::kRankDied);
  EXPECT_EQ(life.current.job.budget_from, 0);
}

TEST(Pause, IsRefusedOnceTheJobEnds) {
  Life life = Training();
  life.Take(CancelJob(life.current, 3));
  EXPECT_EQ(PauseJob(life.current, 4).status().code(), StatusCode::kConflict);
  StopBoth(life);
  EXPECT_EQ(PauseJob(life.current, 4).status().code(), StatusCode::kConflict);
}

TEST(Pause, CanBeCancelledBeforeAndAfterItsRanksAreGone) {
  Life life = Training();
  life.Take(PauseJob(life.current, 3));
  life.Take(CancelJob(life.current, 4));
  EXPECT_EQ(life.state(), JobState::kCancelling);
  for (const IntentRecord& intent : life.last.add_intents) EXPECT_TRUE(intent.graceful);
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kCancelled);

  life = Training();
  life.Take(PauseJob(life.current, 3));
  StopBoth(life);
  life.Take(CancelJob(life.current, 4));
  EXPECT_EQ(life.state(), JobState::kCancelled);
  EXPECT_TRUE(life.last.add_intents.empty());
}

TEST(Preemption, SavesStopsAndDoesNotCount) {
  Life life(1);
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    life.Dispatch({"a", "b"});
    if (epoch > 1) life.Report("a", PlacementEvent::kTraining);
    life.Take(PreemptAttempt(life.current, epoch, "job urgent-1 goes first", 3));
    EXPECT_EQ(life.state(), JobState::kRecovering);
    EXPECT_EQ(life.current.job.reason, Reason::kPreempted);
    for (const IntentRecord& intent : life.last.add_intents) EXPECT_TRUE(intent.graceful);
    EXPECT_TRUE(PreemptAttempt(life.current, epoch, "again", 3)->empty());
    StopBoth(life);
    EXPECT_EQ(life.state(), JobState::kQueued);
    EXPECT_EQ(life.current.job.reason, Reason::kPreempted);
    EXPECT_FALSE(RetryAt(life.current));
  }
}

TEST(TimeLimit, OfARunningJobLetsItSaveAndFailsIt) {
  Life life = Training();
  life.Take(GiveUpJob(life.current, Reason::kTimeLimit, "it ran for 60 s", 61));
  EXPECT_EQ(life.state(), JobState::kRecovering);
  for (const IntentRecord& intent : life.last.add_intents) EXPECT_TRUE(intent.graceful);
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kTimeLimit);
  EXPECT_EQ(life.current.job.message, "it ran for 60 s");
  EXPECT_EQ(life.current.attempt->reason, Reason::kTimeLimit);
}

TEST(TimeLimit, HoldsForAJobThatIsPausedWhileItStops) {
  Life life = Training();
  life.Take(GiveUpJob(life.current, Reason::kTimeLimit, "it ran for 60 s", 61));
  life.Take(PauseJob(life.current, 62));
  StopBoth(life);
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kTimeLimit);
}

TEST(TimeLimit, EndsAQueuedJobAtOnceAndWaitsForOthers) {
  Life life;
  life.Take(GiveUpJob(life.current, Reason::kJobBeforeFailed, "job first-1 has FAILED", 1));
  EXPECT_EQ(life.state(), JobState::kFailed);
  EXPECT_EQ(life.current.job.reason, Reason::kJobBeforeFailed);
  EXPECT_EQ(life.current.job.ended_at, 1);

  life = Training();
  life.Take(PauseJob(life.current, 3));
  EXPECT_TRUE(GiveUpJob(life.current, Reason::kTimeLimit, "", 4)->empty()) << "it stops anyway";
  StopBoth(life);
  EXPECT_TRUE(GiveUpJob(life.current, Reason::kTimeLimit, "", 4)->empty()) << "it does not run";
}

TEST(RunSeconds, AreThoseOfAllAttemptsSinceTheUsersRetry) {
  Life life(1);
  EXPECT_EQ(RunSeconds(life.current, 50), 0);
  life.Take(DispatchAttempt(life.current, OnWorkers({"a"}), 10));
  EXPECT_EQ(RunSeconds(life.current, 14), 4);
  life.Take(PreemptAttempt(life.current, 1, "", 15));
  life.Take(ApplyReport(life.current, {"a", 1, PlacementEvent::kStopped, {}, "", ""}, 20));
  EXPECT_EQ(RunSeconds(life.current, 1000), 10) << "it waits";
  life.Take(DispatchAttempt(life.current, OnWorkers({"a"}), 100));
  EXPECT_EQ(RunSeconds(life.current, 103), 13);
  PlacementReport failed{"a", 2, PlacementEvent::kFailed, Reason::kRankDied, "", ""};
  life.Take(ApplyReport(life.current, failed, 110));
  ASSERT_EQ(life.state(), JobState::kFailed);
  life.Take(RetryJob(life.current, 120));
  EXPECT_EQ(RunSeconds(life.current, 130), 0);
  life.Take(DispatchAttempt(life.current, OnWorkers({"a"}), 140));
  EXPECT_EQ(RunSeconds(life.current, 141), 1);
}

struct LimitedReason {
  Reason reason;
  int64_t RetrySpec::*limit;
  const char* field;
};

TEST(RetryBudget, OfEachKindOfFailureIsHeld) {
  for (const LimitedReason& kind :
       {LimitedReason{Reason::kOutOfMemory, &RetrySpec::max_memory_failures,
                      "retry.max_memory_failures"},
        LimitedReason{Reason::kNumerics, &RetrySpec::max_numerics_failures, "diverged"},
        LimitedReason{Reason::kHung, &RetrySpec::max_hangs, "retry.max_hangs"}}) {
    Life life(10);
    life.current.job.spec.retry.*kind.limit = 3;
    for (int failure = 1; failure <= 3; ++failure) {
      ASSERT_EQ(life.state(), JobState::kQueued) << Name(kind.reason) << failure;
      life.Dispatch({"a"});
      life.Report("a", PlacementEvent::kFailed, kind.reason, "diverged");
      if (failure == 1) {  // another kind does not count
        life.Dispatch({"a"});
        life.Report("a", PlacementEvent::kFailed, Reason::kRankDied, "signal 9");
      }
    }
    EXPECT_EQ(life.state(), JobState::kFailed) << Name(kind.reason);
    EXPECT_THAT(life.current.job.message, HasSubstr(kind.field));
    // A user's retry makes a new start.
    life.Take(RetryJob(life.current, 9));
    life.Dispatch({"a"});
    life.Report("a", PlacementEvent::kFailed, kind.reason, "diverged");
    EXPECT_EQ(life.state(), JobState::kQueued) << Name(kind.reason);
  }
}

TEST(RetryBudget, WithoutALimitOfItsOwnIsThatOfAllAttempts) {
  Life life(3);
  for (int failure = 1; failure <= 3; ++failure) {
    life.Dispatch({"a"});
    life.Report("a", PlacementEvent::kFailed, Reason::kHung, "no step");
    EXPECT_EQ(life.state(), failure < 3 ? JobState::kQueued : JobState::kFailed);
  }
  life = Life(3);
  life.Dispatch({"a"});
  life.Report("a", PlacementEvent::kFailed, Reason::kNumerics, "diverged");
  EXPECT_EQ(life.state(), JobState::kFailed) << "the same numbers would come again";
}

TEST(Update, MovesAJobThatHasNotEndedAndIsRemembered) {
  Life life;
  life.Take(UpdateJob(life.current, "research", 5, 1));
  EXPECT_EQ(life.current.job.queue, "research");
  EXPECT_EQ(life.current.job.priority, 5);
  ASSERT_EQ(life.last.events.size(), 1u);
  EXPECT_EQ(life.last.events[0].text, "queue default -> research, priority 0 -> 5");
  life.Take(UpdateJob(life.current, "research", 5, 1));
  EXPECT_TRUE(life.last.empty());
  life.Take(CancelJob(life.current, 2));
  EXPECT_EQ(UpdateJob(life.current, std::nullopt, 1, 3).status().code(), StatusCode::kConflict);
}

}  // namespace
}  // namespace weft::coordinator
