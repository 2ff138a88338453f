// Workers that are kept free for jobs that recover.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

class ServiceSparesTest : public ServiceTest {
 protected:
  void SetUp() override {
    options_.spare_workers = 1;
    ServiceTest::SetUp();
  }
  void Fail(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch) {
    service_->Report(link, id,
                     {"", epoch, PlacementEvent::kFailed, Reason::kDeviceFailed, "broken", ""});
  }
};

TEST_F(ServiceSparesTest, NoJobStartsOnASpare) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string first = Submit(1)->view.job.id;
  EXPECT_TRUE(a->Saw("start " + first + " 1"));
  const std::string second = Submit(1)->view.job.id;
  EXPECT_FALSE(b->Saw("start", milliseconds(30)));
  EXPECT_EQ(service_->Get(second)->job.reason, Reason::kWaitingForCapacity);
  auto c = Attach("c");
  EXPECT_TRUE(b->Saw("start " + second + " 1")) << "now another one is the spare";
}

TEST_F(ServiceSparesTest, AJobThatNeedsASpareSaysSoAndHoldsBackNoOther) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string large = Submit(2)->view.job.id;
  const std::string small = Submit(1)->view.job.id;
  EXPECT_TRUE(a->Saw("start " + small + " 1"));
  const JobRecord waits = service_->Get(large)->job;
  EXPECT_EQ(waits.reason, Reason::kWaitingForWorkers);
  EXPECT_THAT(waits.message, testing::HasSubstr("1 of them are kept for jobs that recover"));
  auto c = Attach("c");
  Pass(1, {a, b, c});
  FinishAttempt(a, small);
  EXPECT_TRUE(a->Saw("start " + large + " 1")) << "the new one is the spare";
}

TEST_F(ServiceSparesTest, AJobThatLostItsMachineGoesOnOnOneBeforeThoseThatWait) {
  auto a = Attach("a");
  const std::string waits = Submit(2)->view.job.id;
  EXPECT_FALSE(a->Saw("start", milliseconds(30))) << "the only one is a spare";
  auto b = Attach("b");
  const std::string id = Submit(1)->view.job.id;
  service_->Cancel(waits, [](const Result<JobView>&) {});
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  const std::string behind = Submit(1)->view.job.id;
  service_->Detach(a);
  Pass(12, {b});  // its lease runs out, and the margin
  EXPECT_TRUE(b->Saw("start " + id + " 2"));
  EXPECT_FALSE(b->Saw("start " + behind, milliseconds(30)));
}

TEST_F(ServiceSparesTest, ARunningJobDoesNotGrowOnASpare) {
  options_.scale_up.after_seconds = 1;
  options_.scale_up.restart.assumed_start_seconds = 0.001;
  StartService();
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Submit(0)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  EXPECT_FALSE(b->Saw("start", milliseconds(30)));
}

}  // namespace
}  // namespace weft::coordinator
