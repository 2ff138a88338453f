#include "worker/engine/optim/schedule.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

std::vector<double> Rates(const ScheduleSpec& schedule, int64_t steps) {
  std::vector<double> rates;
  for (int64_t step = 0; step < steps; ++step) {
    rates.push_back(ScheduledLearningRate(schedule, 8.0, step, steps));
  }
  return rates;
}

void ExpectRates(const std::vector<double>& rates, const std::vector<double>& expected) {
  ASSERT_EQ(rates.size(), expected.size());
  for (size_t i = 0; i < rates.size(); ++i) EXPECT_NEAR(rates[i], expected[i], 1e-12) << i;
}

TEST(ScheduleTest, ConstantRisesToThePeakAndStays) {
  ExpectRates(Rates({.kind = "constant", .warmup_steps = 4, .final_ratio = 0.1}, 6),
              {2, 4, 6, 8, 8, 8});
}

TEST(ScheduleTest, LinearEndsAtTheFinalRatio) {
  ExpectRates(Rates({.kind = "linear", .warmup_steps = 2, .final_ratio = 0.25}, 6),
              {4, 8, 6.5, 5, 3.5, 2});
}

TEST(ScheduleTest, CosineIsHalfWayInTheMiddle) {
  // cos(pi/4) = sqrt(1/2): 8 * 0.5 * (1 + 0.70710678) = 6.82842712.
  ExpectRates(Rates({.kind = "cosine", .warmup_steps = 1, .final_ratio = 0}, 5),
              {8, 6.82842712474619, 4, 1.17157287525381, 0});
}

TEST(ScheduleTest, InverseSquareRootPassesThroughThePeak) {
  // 8 * sqrt(4 / step): half the peak at four times the warm-up.
  const std::vector<double> rates = Rates({.kind = "inverse_sqrt", .warmup_steps = 4}, 16);
  EXPECT_NEAR(rates[1], 4, 1e-12);
  EXPECT_NEAR(rates[3], 8, 1e-12);
  EXPECT_NEAR(rates[8], 8 * 2.0 / 3.0, 1e-12);
  EXPECT_NEAR(rates[15], 4, 1e-12);
  ExpectRates(Rates({.kind = "inverse_sqrt", .warmup_steps = 0}, 4),
              {8, 8 / std::sqrt(2.0), 8 / std::sqrt(3.0), 4});
}

TEST(ScheduleTest, WarmupStableDecayFallsInTheLastStepsOnly) {
  ExpectRates(
      Rates(
          {.kind = "warmup_stable_decay", .warmup_steps = 2, .final_ratio = 0.25, .decay_steps = 3},
          8),
      {4, 8, 8, 8, 8, 6, 4, 2});
  // A tenth unless said otherwise, but never into the warm-up.
  const std::vector<double> rates =
      Rates({.kind = "warmup_stable_decay", .warmup_steps = 0, .final_ratio = 0}, 20);
  EXPECT_NEAR(rates[17], 8, 1e-12);
  EXPECT_NEAR(rates[18], 4, 1e-12);
  EXPECT_NEAR(rates[19], 0, 1e-12);
  ExpectRates(
      Rates(
          {.kind = "warmup_stable_decay", .warmup_steps = 3, .final_ratio = 0.5, .decay_steps = 4},
          4),
      {8 / 3.0, 16 / 3.0, 8, 4});
}

TEST(ScheduleTest, ThePeakFollowsTheBatch) {
  JobSpec job;
  job.optimizer.learning_rate = 0.5;
  job.train.global_batch = 128;
  job.schedule.reference_batch = 32;
  EXPECT_EQ(PeakLearningRate(job), 0.5);
  job.schedule.batch_scaling = "linear";
  EXPECT_EQ(PeakLearningRate(job), 2.0);
  job.schedule.batch_scaling = "square_root";
  EXPECT_EQ(PeakLearningRate(job), 1.0);
  job.schedule.reference_batch = 0;
  EXPECT_EQ(PeakLearningRate(job), 0.5);
}

TEST(ScheduleTest, WarmupAsLongAsTrainingAndNoneAtAll) {
  ExpectRates(Rates({.kind = "cosine", .warmup_steps = 4, .final_ratio = 0.1}, 4), {2, 4, 6, 8});
  ExpectRates(Rates({.kind = "linear", .warmup_steps = 0, .final_ratio = 0.5}, 2), {6, 4});
}

/// The rates of trainings of these steps, which follow one another through one schedule.
std::vector<double> RatesOfParts(ScheduleSpec schedule, const std::vector<int64_t>& parts) {
  for (const int64_t steps : parts) schedule.steps_after += steps;
  std::vector<double> rates;
  for (const int64_t steps : parts) {
    schedule.steps_after -= steps;
    const std::vector<double> own = Rates(schedule, steps);
    rates.insert(rates.end(), own.begin(), own.end());
    schedule.steps_before += steps;
  }
  return rates;
}

TEST(ScheduleTest, TrainingsThatShareAScheduleHaveTheirPartsOfIt) {
  // The seam after two steps is within the warm-up; that after five within the fall.
  ExpectRates(RatesOfParts({.kind = "linear", .warmup_steps = 4, .final_ratio = 0.5}, {2, 3, 3}),
              {2, 4, 6, 8, 7, 6, 5, 4});
  // cos(pi/4) and its like, on both sides of the middle.
  ExpectRates(RatesOfParts({.kind = "cosine", .warmup_steps = 1, .final_ratio = 0}, {3, 2}),
              {8, 6.82842712474619, 4, 1.17157287525381, 0});
  // A decay that is longer than the last training begins in the one before; a tenth is one of all.
  ExpectRates(
      RatesOfParts(
          {.kind = "warmup_stable_decay", .warmup_steps = 2, .final_ratio = 0.25, .decay_steps = 3},
          {4, 2, 2}),
      {4, 8, 8, 8, 8, 6, 4, 2});
  const std::vector<double> rates =
      RatesOfParts({.kind = "warmup_stable_decay", .warmup_steps = 0, .final_ratio = 0}, {19, 1});
  ASSERT_EQ(rates.size(), 20u);
  EXPECT_NEAR(rates[17], 8, 1e-12);
  EXPECT_NEAR(rates[18], 4, 1e-12);
  EXPECT_NEAR(rates[19], 0, 1e-12);
  ExpectRates(RatesOfParts({.kind = "inverse_sqrt", .warmup_steps = 1}, {1, 3}),
              {8, 8 / std::sqrt(2.0), 8 / std::sqrt(3.0), 4});
}

TEST(ScheduleTest, StepsPastTheEndKeepTheLastRate) {
  EXPECT_NEAR(ScheduledLearningRate({.kind = "cosine", .warmup_steps = 1, .final_ratio = 0.5}, 8.0,
                                    100, 10),
              4.0, 1e-12);
}

}  // namespace
}  // namespace weft::engine
