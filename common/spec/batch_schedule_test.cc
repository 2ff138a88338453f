#include "common/spec/batch_schedule.h"

#include <tuple>

#include <gtest/gtest.h>

namespace weft {
namespace {

BatchSchedule Schedule(int64_t start, int64_t full, int64_t steps) {
  TrainSpec train;
  train.global_batch = full;
  train.batch_warmup_start = start;
  train.batch_warmup_steps = steps;
  return BatchSchedule(train);
}

TEST(BatchSchedule, WithoutWarmupEveryStepIsFull) {
  for (const BatchSchedule& batch : {Schedule(0, 32, 100), Schedule(8, 32, 0)}) {
    EXPECT_EQ(batch.unit(), 32);
    EXPECT_EQ(batch.At(0), 32);
    EXPECT_EQ(batch.Before(7), 7 * 32);
  }
}

TEST(BatchSchedule, GrowsInWholeMultiplesOfTheFirstBatch) {
  const BatchSchedule batch = Schedule(8, 32, 6);
  const int64_t expected[] = {8, 8, 16, 16, 24, 24, 32, 32};
  for (int64_t step = 0; step < 8; ++step) EXPECT_EQ(batch.At(step), expected[step]) << step;
  EXPECT_EQ(batch.unit(), 8);
}

TEST(BatchSchedule, WhatCameBeforeIsTheSumOfTheSteps) {
  for (auto [start, full, steps] : {std::tuple<int64_t, int64_t, int64_t>{8, 32, 6},
                                    {1, 1, 5},
                                    {1, 1000, 7},
                                    {2, 14, 1000},
                                    {3, 300, 997},
                                    {16, 64, 1}}) {
    const BatchSchedule batch = Schedule(start, full, steps);
    int64_t sum = 0;
    for (int64_t step = 0; step < steps + 10; ++step) {
      ASSERT_EQ(batch.Before(step), sum) << start << " " << full << " " << steps << " " << step;
      ASSERT_EQ(batch.At(step) % start, 0);
      ASSERT_LE(batch.At(step), full);
      if (step > 0) {
        ASSERT_GE(batch.At(step), batch.At(step - 1));
      }
      sum += batch.At(step);
    }
    EXPECT_EQ(batch.At(steps), full);
  }
}

TEST(BatchSchedule, ExtremesOfTheRangesDoNotOverflow) {
  const BatchSchedule batch = Schedule(1, 1 << 24, 100'000'000'000);
  // Half of a rectangle, except a unit a step.
  const double rectangle = 1e11 * (1 << 24);
  EXPECT_NEAR(static_cast<double>(batch.Before(100'000'000'000)), rectangle / 2, 1e11);
  EXPECT_EQ(batch.At(99'999'999'999), (1 << 24) - 1);
}

}  // namespace
}  // namespace weft
