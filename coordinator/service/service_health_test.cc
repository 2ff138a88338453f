// Machines that are checked before they get ranks, suspected after failures, and left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/checkpoint_interval.h"
#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

class ServiceHealthTest : public ServiceTest {
 protected:
  void SetUp() override {
    options_.health.limit = seconds(20);
    ServiceTest::SetUp();
  }
  /// Answers the `call`th check.
  void Answer(const std::shared_ptr<FakeLink>& link, int64_t call, const std::string& error = "",
              int64_t device = -1) {
    ASSERT_TRUE(link->Saw("check " + std::to_string(call)));
    service_->ReportHealth(link, {call, error, device});
  }
  void Fail(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch,
            Reason reason, int64_t signal = 0) {
    service_->Report(link, id, {"", epoch, PlacementEvent::kFailed, reason, "broken", "", signal});
    ASSERT_TRUE(link->Saw("ack " + id + " " + std::to_string(epoch)));
  }
  void AwaitLost(const std::string& id) {
    for (int i = 0; i < 1000 && Worker(id).state != WorkerState::kLost; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_EQ(Worker(id).state, WorkerState::kLost);
  }
  WorkerView Worker(const std::string& id) {
    for (const WorkerView& view : service_->Workers()) {
      if (view.profile.worker_id == id) return view;
    }
    ADD_FAILURE() << "no worker " << id;
    return {};
  }
  /// Once that is stored; empty: it is not.
  std::string WhyQuarantined(const std::string& id) {
    for (int i = 0; i < 100 && Worker(id).scheduling != WorkerScheduling::kQuarantined; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return Worker(id).scheduling_why;
  }
  /// Whether the metrics have this, soon, as `has` says.
  bool Shows(const std::string& series, bool has) {
    for (int i = 0; i < 1000; ++i) {
      if ((metrics_.Text().find(series) != std::string::npos) == has) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
};

TEST_F(ServiceHealthTest, AMachineThatJoinsIsCheckedBeforeItGetsRanks) {
  const std::string id = Submit(1)->view.job.id;
  auto a = Attach("a");
  ASSERT_TRUE(a->Saw("check 1"));
  EXPECT_FALSE(a->Saw("start", milliseconds(20)));
  Answer(a, 1);
  EXPECT_TRUE(a->Saw("start " + id + " 1"));
  FinishAttempt(a, id);
  ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  const std::string next = Submit(1)->view.job.id;
  EXPECT_TRUE(a->Saw("start " + next + " 1")) << "once is enough";
  EXPECT_FALSE(a->Saw("check 2", milliseconds(1)));
}

TEST_F(ServiceHealthTest, AJobWaitsAMomentForMachinesThatJoinTogether) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Submit(0)->view.job.id;
  Answer(a, 1);
  EXPECT_FALSE(a->Saw("start", milliseconds(20)));
  Answer(b, 2);
  EXPECT_TRUE(a->Saw("start " + id + " 1"));
  EXPECT_TRUE(b->Saw("start " + id + " 1"));
  auto c = Attach("c");
  auto d = Attach("d");
  const std::string next = Submit(1)->view.job.id;
  Answer(d, 4);
  EXPECT_FALSE(d->Saw("start", milliseconds(20)));
  Pass(4, {a, b, c, d});
  EXPECT_TRUE(d->Saw("start " + next + " 1")) << "c takes too long";
}

TEST_F(ServiceHealthTest, ABadMachineIsQuarantinedAndTheJobStartsElsewhere) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  Answer(a, 1, "a product gave a wrong number");
  auto b = Attach("b");
  Answer(b, 2);
  ASSERT_TRUE(b->Saw("start " + id + " 1"));
  EXPECT_FALSE(a->Saw("start", milliseconds(20)));
  EXPECT_EQ(service_->Get(id)->attempts.size(), 1u) << "none is used up";
  EXPECT_THAT(WhyQuarantined("a"), HasSubstr("a product gave a wrong number"));
  EXPECT_EQ(WhyQuarantined("b"), "");
  EXPECT_THAT(metrics_.Text(), HasSubstr("weft_coord_machine_checks_total{outcome=\"failed\"} 1"));
  const std::string shown = "weft_coord_worker_quarantined{worker=\"a\"} 1";
  EXPECT_TRUE(Shows(shown, true));
  // A new daemon does not make another machine of it.
  service_->Detach(a);
  auto again = Attach("a", 0, {}, "another");
  EXPECT_FALSE(again->Saw("start", milliseconds(20)));
  service_->SetWorkerScheduling("a", WorkerScheduling::kSchedulable, "",
                                [](const Result<WorkerView>&) {});
  EXPECT_TRUE(Shows(shown, false));
}

TEST_F(ServiceHealthTest, ABadGpuIsLeftOutAlone) {
  auto a = Attach("a", 2);
  Answer(a, 1, "a product gave a wrong number", 1);
  for (int i = 0; i < 1000 && Worker("a").profile.devices[1].unusable.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(Worker("a").profile.devices[1].unusable, "a product gave a wrong number");
  EXPECT_EQ(Worker("a").profile.devices[0].unusable, "");
  EXPECT_EQ(WhyQuarantined("a"), "");
}

TEST_F(ServiceHealthTest, AWorkerThatDoesNotAnswerIsAskedAgainAndSuspected) {
  auto a = Attach("a");
  ASSERT_TRUE(a->Saw("check 1"));
  const std::string id = Submit(1)->view.job.id;
  Pass(31, {a});
  EXPECT_FALSE(a->Saw("start", milliseconds(20)));
  EXPECT_GT(Worker("a").suspicion, 0);
  Pass(31, {a});
  Answer(a, 2);
  EXPECT_TRUE(a->Saw("start " + id + " 1"));
}

TEST_F(ServiceHealthTest, AMachineIsCheckedAgainAfterAFailureThatMayBeItsOwn) {
  auto a = Attach("a");
  Answer(a, 1);
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  Fail(a, id, 1, Reason::kRankDied, 11);
  Answer(a, 2);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  EXPECT_DOUBLE_EQ(Worker("a").suspicion, 0.5);
  // One that lost a peer is not to blame.
  Fail(a, id, 2, Reason::kRankDied);
  ASSERT_TRUE(a->Saw("start " + id + " 3"));
  EXPECT_FALSE(a->Saw("check 3", milliseconds(1)));
}

TEST_F(ServiceHealthTest, AMachineThatComputesWrongIsToBlameAlsoWhenItsPeersEndFirst) {
  auto a = Attach("a");
  Answer(a, 1);
  auto b = Attach("b");
  Answer(b, 2);
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  ASSERT_TRUE(b->Saw("start " + id + " 1"));
  Fail(b, id, 1, Reason::kRankDied);
  Fail(a, id, 1, Reason::kSilentCorruption);
  EXPECT_DOUBLE_EQ(Worker("a").suspicion, 1);
  EXPECT_DOUBLE_EQ(Worker("b").suspicion, 0);
  EXPECT_TRUE(Shows("weft_coord_attempt_failures_total{reason=\"silent_corruption\"} 1", true));
}

TEST_F(ServiceHealthTest, AMachineThatFailsOftenIsQuarantinedAlsoAfterARestart) {
  auto a = Attach("a");
  Answer(a, 1);
  for (int i = 1; i <= 3; ++i) {
    const std::string id = Submit(1)->view.job.id;
    ASSERT_TRUE(a->Saw("start " + id + " 1")) << i;
    service_->Cancel(id, [](const Result<JobView>&) {});
    Fail(a, id, 1, Reason::kDeviceFailed);
    if (i < 3) Answer(a, i + 1);
  }
  EXPECT_THAT(WhyQuarantined("a"), HasSubstr("failed too often lately"));
  StartService();
  a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  EXPECT_FALSE(a->Saw("start", milliseconds(30)));
  EXPECT_THAT(WhyQuarantined("a"), HasSubstr("failed too often lately"));
  EXPECT_NEAR(Worker("a").suspicion, 3, 1e-6);
}

TEST_F(ServiceHealthTest, OfFewWorkersSuspicionTakesOutOne) {
  options_.lease = seconds(2);
  options_.heartbeat = seconds(1);
  StartService();
  const std::vector<std::string> names = {"a", "b"};
  std::vector<std::shared_ptr<FakeLink>> links = {Attach("a"), Attach("b")};
  int64_t call = 0;
  for (const auto& link : links) Answer(link, ++call);
  // Both lose the network again and again.
  for (int i = 1; i <= 3; ++i) {
    const std::string id = Submit(2)->view.job.id;
    ASSERT_TRUE(links[0]->Saw("start " + id + " 1"));
    for (const auto& link : links) service_->Detach(link);
    Pass(4, {});
    for (const std::string& name : names) AwaitLost(name);
    service_->Cancel(id, [](const Result<JobView>&) {});
    ASSERT_EQ(AwaitState(id, JobState::kCancelled), JobState::kCancelled);
    for (size_t worker : {0, 1}) {
      links[worker] = Attach(names[worker]);
      if (i < 3) Answer(links[worker], ++call);
    }
  }
  EXPECT_NE(WhyQuarantined("a").empty(), WhyQuarantined("b").empty()) << "one of them";
  EXPECT_GE(std::min(Worker("a").suspicion, Worker("b").suspicion), 2.9);
}

TEST_F(ServiceHealthTest, ALostLeaseCountsOnceHoweverManyJobsItEnds) {
  auto a = Attach("a", 3);
  Answer(a, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(a->Saw("start " + Submit(1)->view.job.id + " 1"));
  service_->Detach(a);
  Pass(15, {});
  AwaitLost("a");
  EXPECT_TRUE(Shows("weft_coord_attempt_failures_total{reason=\"worker_lost\"} 3", true));
  EXPECT_NEAR(Worker("a").suspicion, 1, 0.01);
  EXPECT_EQ(WhyQuarantined("a"), "");
}

TEST_F(ServiceHealthTest, AForgottenWorkerIsBeyondSuspicion) {
  auto a = Attach("a");
  Answer(a, 1);
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Cancel(id, [](const Result<JobView>&) {});
  Fail(a, id, 1, Reason::kDeviceFailed);
  EXPECT_EQ(Worker("a").suspicion, 1);
  service_->Detach(a);
  Pass(15, {});
  AwaitLost("a");
  std::promise<Status> forgotten;
  service_->ForgetWorker("a", [&](Status status) { forgotten.set_value(std::move(status)); });
  ASSERT_TRUE(forgotten.get_future().get().ok());
  a = Attach("a");
  EXPECT_EQ(Worker("a").suspicion, 0);
  for (int i = 0; i < 1000 && !store_->ListSuspicions()->empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(store_->ListSuspicions()->empty());
}

TEST_F(ServiceHealthTest, WorkersLearnHowOftenMachinesFail) {
  auto a = Attach("a");
  Answer(a, 1);
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  const double before = a->last_start().mean_seconds_between_failures;
  EXPECT_DOUBLE_EQ(before, kDeviceHoursBetweenFailures * 3600) << "of one machine, none has failed";
  Fail(a, id, 1, Reason::kDeviceFailed);
  Answer(a, 2);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  EXPECT_NEAR(a->last_start().mean_seconds_between_failures, before / 2, 1);
  StartService();
  a = Attach("a", 0, {{id, 2, {}, {}}});
  Fail(a, id, 2, Reason::kRankDied);
  Pass(3, {a});  // other workers might have come back
  Answer(a, 1);
  ASSERT_TRUE(a->Saw("start " + id + " 3"));
  EXPECT_NEAR(a->last_start().mean_seconds_between_failures, before / 3, 1) << "as stored";
}

}  // namespace
}  // namespace weft::coordinator
