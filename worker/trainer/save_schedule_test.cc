#include "worker/trainer/save_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::trainer {
namespace {

using ::testing::HasSubstr;

JobSpec Job() {
  JobSpec job;
  job.train.steps = 100000;
  job.checkpoint.every_steps = 50;
  job.checkpoint.interval = "auto";
  return job;
}

TEST(SaveSchedule, KeepsToTheJobUntilASaveIsMeasured) {
  const JobSpec job = Job();
  SaveSchedule schedule(job, 3600);
  schedule.OnStart(0, 30);
  for (int64_t step = 1; step < 50; ++step) {
    schedule.OnStep(0.5);
    EXPECT_FALSE(schedule.Due(step)) << step;
  }
  EXPECT_TRUE(schedule.Due(50));
  EXPECT_EQ(schedule.News(), "");
}

TEST(SaveSchedule, ThenSavesAsOftenAsLosesLeast) {
  const JobSpec job = Job();
  SaveSchedule schedule(job, 3600);
  schedule.OnStart(0, 30);
  schedule.OnStep(0.5);
  schedule.OnSave(50, 2.0);
  // As in checkpoint_interval_test: 241 steps of 0.5 s.
  EXPECT_FALSE(schedule.Due(100)) << "every_steps does not count any more";
  EXPECT_FALSE(schedule.Due(50 + 240));
  EXPECT_TRUE(schedule.Due(50 + 241));
  EXPECT_THAT(schedule.News(), HasSubstr("a checkpoint every 241 steps"));
  EXPECT_EQ(schedule.News(), "") << "nothing new";
  schedule.OnSave(291, 2.1);
  EXPECT_EQ(schedule.News(), "") << "hardly anything";
  for (int i = 0; i < 60; ++i) schedule.OnStep(5);
  EXPECT_THAT(schedule.News(), HasSubstr("a checkpoint every 2"));
}

TEST(SaveSchedule, WaitsForTheSaveBefore) {
  const JobSpec job = Job();
  SaveSchedule schedule(job, 60);
  schedule.OnStart(0, 1);
  schedule.OnStep(1);
  schedule.OnSave(50, 0.001);
  schedule.OnBackground(20);
  EXPECT_FALSE(schedule.Due(69));
  EXPECT_TRUE(schedule.Due(70));
}

TEST(SaveSchedule, TriesAgainLaterWhenNothingWasSaved) {
  const JobSpec job = Job();
  SaveSchedule schedule(job, 3600);
  schedule.OnStart(0, 30);
  schedule.OnStep(0.5);
  schedule.OnSave(50, 2.0);
  schedule.OnSave(291, std::nullopt);
  EXPECT_FALSE(schedule.Due(292));
  EXPECT_TRUE(schedule.Due(291 + 241));
}

TEST(SaveSchedule, KeepsToTheJobWhereFailuresAreNotKnown) {
  const JobSpec job = Job();
  SaveSchedule schedule(job, 0);
  schedule.OnStart(0, 30);
  schedule.OnStep(0.5);
  schedule.OnSave(50, 2.0);
  EXPECT_FALSE(schedule.Due(99));
  EXPECT_TRUE(schedule.Due(100));
}

}  // namespace
}  // namespace weft::trainer
