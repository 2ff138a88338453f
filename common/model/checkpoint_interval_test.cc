#include "common/model/checkpoint_interval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace weft {
namespace {

/// Share of the time that goes to steps that are kept, by simulation: failures strike at random
/// while the machines work, and each costs the restart and what was done since the last save.
double SimulatedShare(double period, double stall, double restart, double between, int periods) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> failure(1 / between);
  double wall = 0, kept = 0;
  for (int i = 0; i < periods; ++i) {
    for (double strikes = failure(random); strikes < period; strikes = failure(random)) {
      wall += strikes + restart;
    }
    wall += period;
    kept += period - stall;
  }
  return kept / wall;
}

TEST(OptimalSavePeriod, IsWhatASimulationFindsBest) {
  struct Case {
    double stall, restart, between;
  };
  for (const Case& c : {Case{2, 30, 3600}, Case{20, 300, 7200}, Case{0.5, 5, 600}}) {
    const double best = OptimalSavePeriod(c.stall, c.restart, c.between);
    const double share = SimulatedShare(best, c.stall, c.restart, c.between, 400000);
    for (double factor : {0.5, 0.7, 1.5, 2.0}) {
      EXPECT_GT(share, SimulatedShare(factor * best, c.stall, c.restart, c.between, 400000))
          << factor << " times " << best << " s";
    }
  }
}

TEST(OptimalSavePeriod, IsYoungsWhereASaveAndARestartAreShort) {
  const double between = 1e6, stall = 1;
  EXPECT_NEAR(OptimalSavePeriod(stall, 0, between), std::sqrt(2 * between * stall), 1.01 * stall);
}

TEST(StepsBetweenSaves, FillThePeriodWithoutTheSave) {
  // 2 + sqrt(4 + 2 * (3600 + 30) * 2) = 122.5 s: 120.5 s of steps and the save.
  const SaveCosts costs{.stall_seconds = 2,
                        .background_seconds = 10,
                        .restart_seconds = 30,
                        .between_failures_seconds = 3600,
                        .step_seconds = 0.5};
  EXPECT_EQ(StepsBetweenSaves(costs), 241);
}

TEST(StepsBetweenSaves, HaveBounds) {
  SaveCosts costs{.stall_seconds = 10,
                  .background_seconds = 0,
                  .restart_seconds = 30,
                  .between_failures_seconds = 1e9,
                  .step_seconds = 1};
  EXPECT_EQ(StepsBetweenSaves(costs), 3600) << "an hour is the most that may be lost";
  costs.step_seconds = 7200;
  EXPECT_EQ(StepsBetweenSaves(costs), 1) << "but a step cannot be divided";
  costs = {.stall_seconds = 1e-3,
           .background_seconds = 100,
           .restart_seconds = 1,
           .between_failures_seconds = 60,
           .step_seconds = 3};
  EXPECT_EQ(StepsBetweenSaves(costs), 34) << "the save before must have ended";
}

TEST(StepsBetweenSaves, AreNotKnownBeforeTheCostsAre) {
  const SaveCosts known{.stall_seconds = 1,
                        .background_seconds = 1,
                        .restart_seconds = 1,
                        .between_failures_seconds = 1000,
                        .step_seconds = 1};
  EXPECT_GT(StepsBetweenSaves(known), 0);
  for (double SaveCosts::*field : {&SaveCosts::stall_seconds, &SaveCosts::step_seconds,
                                   &SaveCosts::between_failures_seconds}) {
    SaveCosts costs = known;
    costs.*field = 0;
    EXPECT_EQ(StepsBetweenSaves(costs), 0);
  }
}

}  // namespace
}  // namespace weft
