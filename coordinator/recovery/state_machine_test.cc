#include "coordinator/recovery/state_machine.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace weft::coordinator {
namespace {

TEST(JobTable, EveryPairOfStateAndEventIsDefinedExactlyOnce) {
  std::map<std::pair<int, int>, std::multiset<JobGuard>> rows;
  for (const JobTransition& row : JobTransitions()) {
    rows[{static_cast<int>(row.from), static_cast<int>(row.event)}].insert(row.guard);
  }
  for (int state = 0; state < kJobStates; ++state) {
    for (int event = 0; event < kJobEvents; ++event) {
      const auto& guards = rows[{state, event}];
      bool plain = guards == std::multiset{JobGuard::kAlways};
      bool split = guards == std::multiset{JobGuard::kMayRetry, JobGuard::kMayNotRetry};
      EXPECT_TRUE(plain || split) << Name(static_cast<JobState>(state)) << " x "
                                  << Name(static_cast<JobEvent>(event));
    }
  }
}

TEST(JobTable, OnlyAUsersRetryLeavesATerminalState) {
  for (const JobTransition& row : JobTransitions()) {
    if (row.outcome != JobOutcome::kMove) {
      EXPECT_EQ(row.from, row.to);
      continue;
    }
    EXPECT_NE(row.from, row.to);
    if (!IsTerminal(row.from)) continue;
    EXPECT_EQ(row.event, JobEvent::kRetry);
    EXPECT_EQ(row.to, JobState::kQueued);
    EXPECT_NE(row.from, JobState::kSucceeded);
  }
}

TEST(JobTable, RanksAreGoneBeforeAJobIsQueuedAgainOrHasEnded) {
  std::set<JobState> with_ranks = {JobState::kStarting, JobState::kRunning, JobState::kRecovering,
                                   JobState::kCancelling, JobState::kPausing};
  for (const JobTransition& row : JobTransitions()) {
    if (row.outcome != JobOutcome::kMove || !with_ranks.count(row.from)) continue;
    if (with_ranks.count(row.to)) continue;
    EXPECT_TRUE(row.event == JobEvent::kGone || row.event == JobEvent::kFinished ||
                row.event == JobEvent::kPhaseFinished)
        << Name(row.from) << " -> " << Name(row.to);
  }
}

TEST(JobTable, OnlyAUserStartsOrEndsAPause) {
  for (const JobTransition& row : JobTransitions()) {
    if (row.outcome != JobOutcome::kMove) continue;
    const bool pauses = row.to == JobState::kPausing;
    EXPECT_EQ(pauses, row.event == JobEvent::kPause && row.from != JobState::kQueued)
        << Name(row.from) << " x " << Name(row.event);
    if (row.from == JobState::kPaused) {
      EXPECT_TRUE(row.event == JobEvent::kResume || row.event == JobEvent::kCancel)
          << Name(row.event);
    }
  }
}

TEST(JobTable, EveryStateCanReachATerminalOne) {
  std::set<JobState> good = {JobState::kSucceeded, JobState::kFailed, JobState::kCancelled};
  for (int round = 0; round < kJobStates; ++round) {
    for (const JobTransition& row : JobTransitions()) {
      if (row.outcome == JobOutcome::kMove && good.count(row.to)) good.insert(row.from);
    }
  }
  EXPECT_EQ(good.size(), static_cast<size_t>(kJobStates));
}

TEST(ShareTable, ProgressesForwardAndStaysWhenGone) {
  std::set<std::pair<int, int>> seen;
  for (const PlacementTransition& row : PlacementTransitions()) {
    EXPECT_TRUE(seen.insert({static_cast<int>(row.from), static_cast<int>(row.event)}).second);
    if (IsGone(row.from)) {
      EXPECT_EQ(row.to, row.from);
    }
    EXPECT_GE(row.to, row.from);
    EXPECT_EQ(NextPlacementState(row.from, row.event), row.to);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kPlacementStates * kPlacementEvents));
  EXPECT_EQ(NextPlacementState(PlacementState::kDispatched, PlacementEvent::kFinished),
            PlacementState::kFinished);
  EXPECT_EQ(NextPlacementState(PlacementState::kTraining, PlacementEvent::kStarted),
            PlacementState::kTraining);
  EXPECT_EQ(NextPlacementState(PlacementState::kLost, PlacementEvent::kFinished),
            PlacementState::kLost);
}

}  // namespace
}  // namespace weft::coordinator
