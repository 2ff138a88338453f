#include "worker/daemon/unsent_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"

namespace weft::daemon {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class UnsentReportsTest : public ::testing::Test {
 protected:
  UnsentReportsTest() : path_(::testing::TempDir() + "unsent.pb") {}
  ~UnsentReportsTest() override {
    if (Env::Posix().FileExists(path_)) {
      EXPECT_TRUE(Env::Posix().RemoveFile(path_).ok());
    }
  }
  static UnsentAttempt Ended(const std::string& job, int64_t step) {
    UnsentAttempt attempt;
    attempt.running.set_job_id(job);
    attempt.running.set_epoch(2);
    attempt.running.mutable_progress()->set_step(step);
    attempt.checkpoints.emplace_back().mutable_checkpoint()->set_step(step);
    for (v1::AttemptState state : {v1::ATTEMPT_TRAINING, v1::ATTEMPT_STOPPED}) {
      v1::AttemptReport& report = attempt.reports.emplace_back();
      report.set_job_id(job);
      report.set_epoch(2);
      report.set_state(state);
      report.set_first_rank(0);
    }
    return attempt;
  }
  static v1::AttemptAck Ack(const std::string& job, v1::AttemptState state,
                            int32_t first_rank = 0) {
    v1::AttemptAck ack;
    ack.set_job_id(job);
    ack.set_epoch(2);
    ack.set_state(state);
    ack.set_first_rank(first_rank);
    return ack;
  }

  const std::string path_;
};

TEST_F(UnsentReportsTest, AreThereForTheNextDaemonUntilTheyAreAcknowledged) {
  UnsentReports first(path_);
  EXPECT_THAT(first.attempts(), IsEmpty());
  first.Keep({Ended("a", 7), Ended("b", 9)});
  {
    UnsentReports second(path_);
    ASSERT_THAT(second.attempts(), SizeIs(2));
    EXPECT_EQ(second.attempts()[0].running.progress().step(), 7);
    EXPECT_EQ(second.attempts()[1].checkpoints[0].checkpoint().step(), 9);
    second.Acknowledge(Ack("a", v1::ATTEMPT_STOPPED));  // answers all up to it
    second.Acknowledge(Ack("b", v1::ATTEMPT_TRAINING));
    second.Acknowledge(Ack("c", v1::ATTEMPT_STOPPED));
    second.Acknowledge(Ack("b", v1::ATTEMPT_STOPPED, /*first_rank=*/1));  // of other ranks
    // It ends with an attempt of its own.
    second.Keep({Ended("d", 1)});
  }
  UnsentReports third(path_);
  ASSERT_THAT(third.attempts(), SizeIs(2));
  EXPECT_EQ(third.attempts()[0].running.job_id(), "b");
  EXPECT_THAT(third.attempts()[0].reports, SizeIs(1));
  third.Acknowledge(Ack("b", v1::ATTEMPT_STOPPED));
  third.Acknowledge(Ack("d", v1::ATTEMPT_STOPPED));
  EXPECT_THAT(third.attempts(), IsEmpty());
  EXPECT_FALSE(Env::Posix().FileExists(path_));
}

TEST_F(UnsentReportsTest, ThatAreDamagedCountAsNone) {
  UnsentReports(path_).Keep({Ended("a", 7)});
  Result<std::string> text = ReadFile(Env::Posix(), path_);
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path_, text->substr(0, text->size() / 2)).ok());
  EXPECT_THAT(UnsentReports(path_).attempts(), IsEmpty());
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path_, "nonsense").ok());
  EXPECT_THAT(UnsentReports(path_).attempts(), IsEmpty());
}

}  // namespace
}  // namespace weft::daemon
