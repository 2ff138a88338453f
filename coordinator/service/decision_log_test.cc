#include "coordinator/service/decision_log.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class DecisionLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "decisions";
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A pass in which one job starts.
  static void Record(DecisionLog& log, GpuSituation& situation) {
    for (auto& spec : situation.specs) {
      spec->name = "job";
      spec->data.train = {"text"};
    }
    PlanAnswers answers;
    const SchedulerDecisions decisions = Schedule(situation.snapshot, Recording(PlanGpus, answers));
    log.Record(situation.snapshot, answers, decisions);
  }
  std::vector<std::string> Files() const { return *Env::Posix().ListDir(folder_); }

  std::string folder_;
};

TEST_F(DecisionLogTest, WhatIsRecordedIsDecidedAgain) {
  DecisionLog log(Env::Posix(), folder_, 1 << 20);
  GpuSituation situation(2);
  situation.Wait("first", 4, 100);
  Record(log, situation);
  situation.Wait("second", 8, 100);
  Record(log, situation);
  ASSERT_THAT(Files(), ElementsAre("00000001.jsonl"));
  const std::string lines = *ReadFile(Env::Posix(), folder_ + "/00000001.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  const Status status = ReplayDecisions(lines);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(DecisionLogTest, APassThatDecidesNothingIsLeftOut) {
  DecisionLog log(Env::Posix(), folder_, 1 << 20);
  GpuSituation situation(1);
  situation.Wait("too wide", 64, 100);
  Record(log, situation);
  EXPECT_FALSE(Env::Posix().FileExists(folder_));
}

TEST_F(DecisionLogTest, TheOldestFilesGoAndEachIsReadableByItself) {
  GpuSituation situation(2);
  situation.Wait("first", 4, 100);
  for (int start = 0; start < 2; ++start) {  // a new process goes on behind the last file
    DecisionLog log(Env::Posix(), folder_, 4);
    for (int i = 0; i < 5; ++i) Record(log, situation);
  }
  ASSERT_THAT(Files(), SizeIs(4));
  EXPECT_EQ(Files().back(), "00000010.jsonl");
  for (const std::string& name : Files()) {
    const Status status = ReplayDecisions(*ReadFile(Env::Posix(), folder_ + "/" + name));
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

TEST_F(DecisionLogTest, AFullDiskLosesALineAndNotTheNextOnes) {
  FaultEnv env;
  DecisionLog log(env, "/decisions", 1 << 20);
  GpuSituation situation(2);
  situation.Wait("first", 4, 100);
  Record(log, situation);
  env.SetCapacity(0);
  Record(log, situation);
  env.SetCapacity(uint64_t{1} << 30);
  Record(log, situation);
  const std::vector<std::string> files = *env.ListDir("/decisions");
  ASSERT_THAT(files, SizeIs(2));
  for (const std::string& name : files) {
    const std::string lines = *ReadFile(env, "/decisions/" + name);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << name;
    const Status status = ReplayDecisions(lines);
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

}  // namespace
}  // namespace weft::coordinator
