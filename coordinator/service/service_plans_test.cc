// What the service does while plans are being looked for.
#include <gmock/gmock.h>

#include <atomic>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

/// Plans of jobs with recompute "optimal" never come to an end by themselves.
class ServicePlansTest : public ServiceTest {
 protected:
  ServicePlansTest() {
    planner_ = [this](const JobSpec& spec, const ClusterProfile& cluster,
                      const std::stop_token& stop) -> Result<PlanReport> {
      ++plans_;
      if (spec.resources.recompute != "optimal") return OneRankEach(spec, cluster);
      ++endless_;
      while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
      --endless_;
      return AbortedError("stopped");
    };
    options_.scale_up.after_seconds = 0;
  }
  static JobSpec Job(int64_t ranks, bool endless = false) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.resources.ranks = ranks;
    spec.train.global_batch = 2 * ranks;
    if (endless) spec.resources.recompute = "optimal";
    return spec;
  }
  std::string SubmitJob(const JobSpec& spec) {
    std::promise<std::string> promise;
    service_->Submit(spec, "own-" + std::to_string(++requests_),
                     [&](const Result<SubmitResult>& r) { promise.set_value(r->view.job.id); });
    return promise.get_future().get();
  }
  bool AwaitEndless(int count) {
    for (int i = 0; i < 5000 && endless_ != count; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return endless_ == count;
  }
  std::string AwaitMessage(const std::string& id, const std::string& part) {
    std::string message;
    for (int i = 0; i < 5000 && message.find(part) == std::string::npos; ++i) {
      message = service_->Get(id)->job.message;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return message;
  }

  std::atomic<int> plans_ = 0;
  std::atomic<int> endless_ = 0;  ///< Under way.
};

TEST_F(ServicePlansTest, AJobWhoseTurnIsPlannedHoldsBackOthersForAWhileOnly) {
  auto a = Attach("a");
  const std::string slow = SubmitJob(Job(1, true));
  ASSERT_TRUE(AwaitEndless(1));
  const std::string quick = SubmitJob(Job(1));
  EXPECT_THAT(AwaitMessage(quick, "waits behind job " + slow), HasSubstr("goes first"));
  EXPECT_EQ(service_->Get(slow)->job.reason, Reason::kPlanning);
  EXPECT_THAT(service_->Get(slow)->job.message, HasSubstr("being looked for"));
  Pass(2, {a});  // heartbeats are answered meanwhile
  EXPECT_TRUE(a->Saw("start " + quick + " 1"));
  EXPECT_EQ(endless_, 1);
}

TEST_F(ServicePlansTest, APlanThatTakesTooLongIsAReasonToWaitAndIsTriedAgain) {
  auto a = Attach("a");
  const std::string slow = SubmitJob(Job(1, true));
  ASSERT_TRUE(AwaitEndless(1));
  Pass(9, {a});
  EXPECT_THAT(AwaitMessage(slow, "longer than the 8 s"), HasSubstr("tried again"));
  EXPECT_EQ(service_->Get(slow)->job.reason, Reason::kPlanning);
  EXPECT_EQ(service_->Get(slow)->job.state, JobState::kQueued);
  EXPECT_TRUE(AwaitEndless(0));
  Pass(61, {a});
  EXPECT_TRUE(AwaitEndless(1)) << "after a pause";
}

TEST_F(ServicePlansTest, PlanningEndsWithTheJobThatItIsFor) {
  auto a = Attach("a");
  const std::string slow = SubmitJob(Job(1, true));
  ASSERT_TRUE(AwaitEndless(1));
  std::promise<void> cancelled;
  service_->Cancel(slow, [&](const Result<JobView>&) { cancelled.set_value(); });
  cancelled.get_future().wait();
  EXPECT_TRUE(AwaitEndless(0));
}

TEST_F(ServicePlansTest, PlanningEndsWithTheCallThatItIsFor) {
  auto a = Attach("a");
  std::vector<std::shared_ptr<PlanTicket>> tickets;
  std::vector<std::promise<Status>> done(3);
  for (auto& promise : done) {  // two plan, one waits
    tickets.push_back(service_->PlanFor(
        Job(1, true), std::nullopt, 1,
        [&](const Result<PlanReport>& report) { promise.set_value(report.status()); }));
  }
  ASSERT_TRUE(AwaitEndless(2));
  const std::string quick = SubmitJob(Job(1));
  EXPECT_TRUE(a->Saw("start " + quick + " 1")) << "calls take no thread from jobs";
  for (const auto& ticket : tickets) service_->CancelPlanning(ticket);
  for (auto& promise : done) EXPECT_EQ(promise.get_future().get().code(), StatusCode::kAborted);
  EXPECT_TRUE(AwaitEndless(0));
  EXPECT_TRUE(PlanFor(Job(1)).ok());
}

TEST_F(ServicePlansTest, ACallHasABudgetToo) {
  auto a = Attach("a");
  std::promise<Status> done;
  service_->PlanFor(Job(1, true), std::nullopt, 1,
                    [&](const Result<PlanReport>& report) { done.set_value(report.status()); });
  ASSERT_TRUE(AwaitEndless(1));
  clock_.Advance(seconds(60));
  service_->Wake();
  const Status status = done.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("longer than the 60 s"));
}

TEST_F(ServicePlansTest, BehindAnyNumberOfJobsThatFitNowhereOthersRun) {
  auto a = Attach("a");
  std::vector<std::string> infeasible;
  for (int i = 0; i < 1200; ++i) infeasible.push_back(SubmitJob(Job(16)));
  const std::string small = SubmitJob(Job(1));
  EXPECT_TRUE(a->Saw("start " + small + " 1"));
  for (const std::string& id : {infeasible.front(), infeasible.back()}) {
    EXPECT_THAT(AwaitMessage(id, "cannot run it"), HasSubstr("too few workers"));
    EXPECT_EQ(service_->Get(id)->job.reason, Reason::kWaitingForWorkers);
  }
  // The infeasible ones on what is free with and without the small one, and the small one.
  EXPECT_LE(plans_, 4);
}

TEST_F(ServicePlansTest, BehindManyDifferentJobsThatFitNowhereOthersRunSoon) {
  // Each is planned by itself, and every other one without an end.
  for (int i = 0; i < 300; ++i) SubmitJob(Job(16 + i, i % 2 == 0));
  const std::string small = SubmitJob(Job(1));
  auto a = Attach("a");
  ASSERT_TRUE(AwaitEndless(2)) << "on both threads";
  int passed = 0;
  for (; passed < 60 && !a->Saw("start " + small + " 1", milliseconds(100)); ++passed) {
    Pass(1, {a});
  }
  EXPECT_GE(passed, 2) << "those before it are waited for";
  // They use up one while together, and then a thread one budget. One after the other they would
  // hold it back for minutes.
  EXPECT_LT(passed, 60);
}

TEST_F(ServicePlansTest, AJobWhosePlanWasGivenUpHoldsBackNobodyWhenItIsPlannedAgain) {
  auto a = Attach("a");
  const std::string slow = SubmitJob(Job(1, true));
  ASSERT_TRUE(AwaitEndless(1));
  Pass(9, {a});
  AwaitMessage(slow, "longer than the 8 s");
  // One that is alike has no plan that is looked for, and so nobody waits for it.
  const std::string alike = SubmitJob(Job(1, true));
  AwaitMessage(alike, "longer than the 8 s");
  EXPECT_EQ(service_->Get(alike)->job.reason, Reason::kPlanning);
  Pass(61, {a});
  ASSERT_TRUE(AwaitEndless(1)) << "after a pause";
  const std::string quick = SubmitJob(Job(1));
  EXPECT_TRUE(a->Saw("start " + quick + " 1"));
}

}  // namespace
}  // namespace weft::coordinator
