#include "worker/engine/train/guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::engine {
namespace {

GuardSpec Guard(double deviations, int64_t window) {
  GuardSpec guard;
  guard.spike_deviations = deviations;
  guard.window = window;
  return guard;
}

TEST(Guard, ASpikeIsSomeDeviationsAboveTheMeanOfAFullWindow) {
  const GuardSpec guard = Guard(3, 4);
  const std::vector<double> window = {1, 3, 1, 3};  // mean 2, deviation 1
  EXPECT_EQ(JudgeStep(guard, window, 5.0, true), StepVerdict::kSound);
  EXPECT_EQ(JudgeStep(guard, window, std::nextafter(5.0, 6.0), true), StepVerdict::kSpike);
  EXPECT_EQ(JudgeStep(guard, window, -100, true), StepVerdict::kSound) << "a fall is no spike";
  const std::vector<double> filling = {1, 3, 1};
  EXPECT_EQ(JudgeStep(guard, filling, 1e9, true), StepVerdict::kSound);
  EXPECT_EQ(JudgeStep(Guard(0, 4), window, 1e9, true), StepVerdict::kSound) << "not asked for";
  EXPECT_EQ(DescribeSpike(window, 12.0),
            "12 is 10 standard deviations above 2, the mean of the last 4 steps");
}

TEST(Guard, WhatIsNotFiniteIsNeverSound) {
  for (double deviations : {0.0, 3.0}) {
    const GuardSpec guard = Guard(deviations, 2);
    for (double loss :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(JudgeStep(guard, {}, loss, true), StepVerdict::kNotFinite);
    }
    EXPECT_EQ(JudgeStep(guard, {}, 1.0, false), StepVerdict::kNotFinite);
  }
}

TEST(Guard, TheWindowKeepsTheNewestLossesAndNothingWhenUnused) {
  std::vector<double> window;
  for (double loss : {5.0, 4.0, 3.0, 2.0}) RememberLoss(Guard(3, 3), loss, window);
  EXPECT_EQ(window, (std::vector<double>{4, 3, 2}));
  std::vector<double> unused;
  RememberLoss(Guard(0, 3), 5.0, unused);
  EXPECT_TRUE(unused.empty());
}

TEST(Guard, RollsBackAfterSkipsInARowUntilItMayNotAnyMore) {
  GuardSpec guard;
  guard.skips_before_rollback = 3;
  guard.max_rollbacks = 2;
  EXPECT_EQ(AfterSkips(guard, 0, 0), GuardAction::kGoOn);
  EXPECT_EQ(AfterSkips(guard, 2, 0), GuardAction::kGoOn);
  EXPECT_EQ(AfterSkips(guard, 3, 0), GuardAction::kRollBack);
  EXPECT_EQ(AfterSkips(guard, 3, 1), GuardAction::kRollBack);
  EXPECT_EQ(AfterSkips(guard, 3, 2), GuardAction::kGiveUp);
  guard.max_rollbacks = 0;
  EXPECT_EQ(AfterSkips(guard, 3, 0), GuardAction::kGiveUp);
}

TEST(Guard, ARollbackKeepsTheCheckpointsStateAndPassesOverAllDataThatWasRead) {
  TrainCounters checkpoint;
  checkpoint.step = 40;
  checkpoint.updates = 39;
  checkpoint.skipped_steps = 1;
  checkpoint.tokens = 4000;
  checkpoint.recent_losses = {3, 2};
  TrainCounters bad = checkpoint;
  bad.step = 57;
  bad.skipped_steps = 4;
  bad.loss_spikes = 3;
  bad.tokens = 5700;
  const TrainCounters once = AfterRollback(bad, checkpoint);
  EXPECT_EQ(once.step, 40);
  EXPECT_EQ(once.step + once.data_offset, 57) << "the next data is what step 57 would have read";
  EXPECT_EQ(once.updates, 39);
  EXPECT_EQ(once.tokens, 4000);
  EXPECT_EQ(once.skipped_steps, 4) << "what happened is not forgotten";
  EXPECT_EQ(once.loss_spikes, 3);
  EXPECT_EQ(once.rollbacks, 1);
  EXPECT_EQ(once.recent_losses, checkpoint.recent_losses);
  bad = once;
  bad.step = 50;
  const TrainCounters twice = AfterRollback(bad, checkpoint);
  EXPECT_EQ(twice.step + twice.data_offset, 67);
  EXPECT_EQ(twice.rollbacks, 2);
}

TEST(Guard, ARollbackOfRoundsByTimeGoesOnAfterAllThatAnyRankHasRead) {
  TrainCounters checkpoint;
  checkpoint.step = 40;
  checkpoint.rounds = {165, {150, 160, 175}, {50, 30}};
  TrainCounters bad = checkpoint;
  bad.step = 57;
  bad.rounds = {230, {180, 200, 250}, {80, 45}};
  const TrainCounters once = AfterRollback(bad, checkpoint);
  EXPECT_EQ(once.rounds, (RoundState{165, {250}, {50, 30}}));
  EXPECT_EQ(once.step, 40);
  EXPECT_EQ(once.data_offset, 0);
}

}  // namespace
}  // namespace weft::engine
