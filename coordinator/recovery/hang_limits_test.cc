#include "coordinator/recovery/hang_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

PlacementActivity Doing(const std::string& activity, double silent_seconds = 0) {
  PlacementActivity placement;
  placement.worker_id = "w";
  placement.activity = activity;
  placement.silent_seconds = silent_seconds;
  return placement;
}

PlacementActivity Saving(int64_t bytes) {
  PlacementActivity placement = Doing("saving");
  placement.saved_bytes = bytes;
  return placement;
}

PlacementActivity Evaluating(int64_t sequences) {
  PlacementActivity placement = Doing("evaluating");
  placement.sequences = sequences;
  return placement;
}

/// Steps of two seconds with eight sequences each, on disks of 100 MB/s.
ActivityForecast Forecast() {
  return {.step_seconds = 2,
          .sequences_per_step = 8,
          .memory_seconds = 1,
          .load_seconds = 4,
          .disk_bytes_per_second = 1e8};
}

double LimitOf(const PlacementActivity& placement, const ActivityForecast& forecast = Forecast(),
               const QuietTimes& quiet = {}) {
  return HangLimits(std::vector{placement}, forecast, quiet, HangRules()).Of(placement).seconds;
}

TEST(HangLimits, OfAFirstStepAreFiveTimesWhatThePlanPredictsOfItAndItsMemory) {
  EXPECT_EQ(LimitOf(Doing("training")), 20) << "15 s would be called too soon";
  EXPECT_EQ(LimitOf(Doing("training"), {.step_seconds = 8, .memory_seconds = 4}), 60);
  EXPECT_EQ(LimitOf(Doing("training"), {.step_seconds = 10, .memory_seconds = 400}), 300);
  EXPECT_EQ(LimitOf(Doing("training"), {.step_seconds = 100, .memory_seconds = 400}), 500)
      << "as its other steps";
  EXPECT_EQ(LimitOf(Doing("training"), {}), 300) << "nothing is known";
  ActivityForecast on_gpus = Forecast();
  on_gpus.on_gpus = true;
  EXPECT_EQ(LimitOf(Doing("training"), on_gpus), 300) << "nor of kernels that are loaded first";
  EXPECT_EQ(LimitOf(Doing("loading"), on_gpus), 300);
}

TEST(HangLimits, OfAnEvaluationFollowFromItsSequences) {
  EXPECT_EQ(LimitOf(Evaluating(8)), 20);
  EXPECT_EQ(LimitOf(Evaluating(80)), 100) << "ten steps";
  EXPECT_EQ(LimitOf(Evaluating(8000)), 300);
  EXPECT_EQ(LimitOf(Evaluating(1), {.step_seconds = 7, .sequences_per_step = 8}), 35)
      << "a sequence may take as long as all of a step";
  EXPECT_EQ(LimitOf(Evaluating(0)), 300) << "a worker that does not say";
  PlacementActivity measured = Evaluating(80);
  measured.longest_step_seconds = 3;
  EXPECT_EQ(LimitOf(measured), 150) << "steps take longer than predicted";
}

TEST(HangLimits, OfASaveFollowFromTheBytesOfAllRanks) {
  EXPECT_EQ(LimitOf(Saving(1000)), 20);
  EXPECT_EQ(LimitOf(Saving(500'000'000)), 50) << "5 s to write it, 5 to read it back";
  EXPECT_EQ(LimitOf(Saving(500'000'000'000)), 300);
  EXPECT_EQ(LimitOf(Saving(1000), {.step_seconds = 2}), 300) << "no disk was measured";
  const std::vector all = {Saving(0), Saving(300'000'000), Saving(300'000'000)};
  const QuietTimes quiet;
  const ActivityForecast forecast = Forecast();
  const HangRules rules;
  const HangLimits limits(all, forecast, quiet, rules);
  EXPECT_EQ(limits.Of(all[0]).seconds, 60) << "it waits for the others";
  EXPECT_EQ(LimitOf(Saving(0)), 300) << "a worker that does not say";
}

TEST(HangLimits, OfAStartFollowFromWhatItReads) {
  for (const char* activity : {"starting", "loading"}) {
    EXPECT_EQ(LimitOf(Doing(activity)), 35) << activity;
    EXPECT_EQ(LimitOf(Doing(activity), {.step_seconds = 2}), 300) << "no disk was measured";
  }
}

TEST(HangLimits, OfWaitsForOtherRanksAreTheLongest) {
  for (const char* activity : {"exchanging", "joining", "what a newer worker says"}) {
    EXPECT_EQ(LimitOf(Doing(activity)), 300) << activity;
  }
}

TEST(HangLimits, AreTheLongestWhileARankWaitsForADisk) {
  for (PlacementActivity placement : {Saving(1000), Evaluating(8), Doing("training")}) {
    placement.rank_states = "rank 0 sleeping, rank 1 waiting for a disk";
    EXPECT_EQ(LimitOf(placement), 300) << placement.activity;
  }
}

TEST(HangLimits, GrowWithTheSilencesThatPassed) {
  QuietTimes quiet;
  quiet.See(std::vector{Doing("evaluating", 9)});
  EXPECT_EQ(LimitOf(Evaluating(8), Forecast(), quiet), 20) << "it has not passed yet";
  quiet.See(std::vector{Doing("evaluating", 0.5)});
  EXPECT_EQ(LimitOf(Evaluating(8), Forecast(), quiet), 45);
  EXPECT_EQ(LimitOf(Saving(1000), Forecast(), quiet), 20) << "another kind";
  quiet.See(std::vector{Doing("evaluating", 70)});
  quiet.See(std::vector{Doing("evaluating", 0)});
  EXPECT_EQ(LimitOf(Evaluating(8), Forecast(), quiet), 300) << "and no further";
  const PlacementActivity placement = Evaluating(8);
  const ActivityForecast forecast = Forecast();
  const HangRules rules;
  EXPECT_THAT(HangLimits(std::vector{placement}, forecast, quiet, rules).Of(placement).why,
              HasSubstr("it should take 2.0 s, and was silent for up to 70 s before"));
}

TEST(QuietTimes, AreThoseOfTheLiveliestPlacement) {
  QuietTimes quiet;
  quiet.See(std::vector{Doing("saving", 50), Doing("saving", 3)});
  quiet.See(std::vector{Doing("saving", 0), Doing("saving", 4)});
  EXPECT_EQ(quiet.LongestSeconds(ActivityKind::kSave), 3) << "one of them worked meanwhile";
  quiet.See(std::vector{Doing("saving", 5), Doing("", 0)});
  quiet.See(std::vector{Doing("saving", 2), Doing("saving", 2)});
  EXPECT_EQ(quiet.LongestSeconds(ActivityKind::kSave), 3) << "one of them is not known";
}

TEST(QuietTimes, OfAnAttemptThatEndedSilentAreNotThoseOfTheNext) {
  QuietTimes quiet;
  PlacementActivity last = Doing("saving", 250);
  last.longest_step_seconds = 6;
  quiet.See(std::vector{last});
  quiet.NextAttempt();
  quiet.See(std::vector{Doing("starting", 0)});
  EXPECT_EQ(quiet.LongestSeconds(ActivityKind::kSave), 0);
  EXPECT_EQ(quiet.step_seconds_before(), 6);
  EXPECT_EQ(LimitOf(Doing("training"), {.step_seconds = 2}, quiet), 30)
      << "its steps may take as long as those before";
  PlacementActivity steps = Doing("training");
  steps.longest_step_seconds = 1;
  EXPECT_EQ(LimitOf(steps, {.step_seconds = 2}, quiet), 20) << "once there are some, these count";
}

TEST(ActivityForecast, FollowsFromThePlanAndTheSlowestMachine) {
  Plan plan;
  plan.mesh.data = 4;
  plan.prediction.step_seconds = 3;
  plan.prediction.memory_per_rank.parameters_bytes = 1'000'000'000;
  plan.prediction.memory_per_rank.optimizer_bytes = 2'000'000'000;
  plan.prediction.memory_per_rank.activations_bytes = 1'000'000'000;
  const std::vector<MachineRates> machines = {
      {.ranks = 3, .copy_bytes_per_second = 1e10, .disk_write_bytes_per_second = 1e9},
      {.ranks = 1, .copy_bytes_per_second = 2e9, .disk_write_bytes_per_second = 5e8}};
  const ActivityForecast forecast = ForecastOf(plan, 16, machines);
  EXPECT_EQ(forecast.step_seconds, 3);
  EXPECT_EQ(forecast.sequences_per_step, 16);
  EXPECT_DOUBLE_EQ(forecast.memory_seconds, 2) << "4 GB of one rank at 2 GB/s";
  EXPECT_DOUBLE_EQ(forecast.load_seconds, 24) << "3 GB of each of four ranks at 0.5 GB/s";
  EXPECT_EQ(forecast.disk_bytes_per_second, 5e8);
  std::vector<MachineRates> unknown = machines;
  unknown[0].disk_write_bytes_per_second = 0;
  EXPECT_EQ(ForecastOf(plan, 16, unknown).disk_bytes_per_second, 0);
  EXPECT_EQ(ForecastOf(plan, 16, unknown).load_seconds, 0);
  EXPECT_FALSE(forecast.on_gpus);
  plan.device = "cuda";
  EXPECT_TRUE(ForecastOf(plan, 16, machines).on_gpus);
}

}  // namespace
}  // namespace weft::coordinator
