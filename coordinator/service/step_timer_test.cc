#include "coordinator/service/step_timer.h"

#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using std::chrono::seconds;

TEST(StepTimer, IsTheMeanOverTheStepsThatWereReported) {
  StepTimer timer;
  timer.See(10, 1, seconds(100));
  timer.See(12, 1, seconds(104));
  EXPECT_EQ(timer.StepSeconds(), 0) << "too few";
  timer.See(13, 1, seconds(106));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2);
  timer.See(13, 1, seconds(160));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2) << "heard again";
  timer.See(20, 1, seconds(170));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 7);
}

TEST(StepTimer, BeginsAnewWhereTheTrainingWentBack) {
  StepTimer timer;
  timer.See(10, 1, seconds(0));
  timer.See(20, 1, seconds(10));
  timer.See(5, 1, seconds(20));
  EXPECT_EQ(timer.StepSeconds(), 0);
  timer.See(10, 1, seconds(30));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2);
}

TEST(StepTimer, TheMedianIsOfSingleStepsWhateverComesBetweenThem) {
  StepTimer timer;
  for (int step = 1; step < 20; ++step) timer.See(step, step % 5 == 0 ? 60 : 2, seconds(step));
  EXPECT_EQ(timer.MedianSeconds(), 0) << "too few";
  timer.See(20, 2, seconds(20));
  EXPECT_DOUBLE_EQ(timer.MedianSeconds(), 2);
  for (int step = 21; step < 260; ++step) timer.See(step, 7, seconds(step));
  EXPECT_DOUBLE_EQ(timer.MedianSeconds(), 7);
}

}  // namespace
}  // namespace weft::coordinator
