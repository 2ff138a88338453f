#include "coordinator/service/step_timer.h"

#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

using std::chrono::seconds;

TEST(StepTimer, IsTheMeanOverTheStepsThatWereReported) {
  StepTimer timer;
  timer.See(10, seconds(100));
  timer.See(12, seconds(104));
  EXPECT_EQ(timer.StepSeconds(), 0) << "too few";
  timer.See(13, seconds(106));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2);
  timer.See(13, seconds(160));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2) << "heard again";
  timer.See(20, seconds(170));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 7);
}

TEST(StepTimer, BeginsAnewWhereTheTrainingWentBack) {
  StepTimer timer;
  timer.See(10, seconds(0));
  timer.See(20, seconds(10));
  timer.See(5, seconds(20));
  EXPECT_EQ(timer.StepSeconds(), 0);
  timer.See(10, seconds(30));
  EXPECT_DOUBLE_EQ(timer.StepSeconds(), 2);
}

}  // namespace
}  // namespace weft::coordinator
