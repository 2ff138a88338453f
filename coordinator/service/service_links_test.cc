// Who measures the network when, and which rate plans use.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class LinksTest : public ServiceTest {
 protected:
  std::shared_ptr<FakeLink> Join(const std::string& id, const std::string& machine,
                                 double given = 0, int gpus = 0) {
    auto link = std::make_shared<FakeLink>();
    WorkerHello hello;
    hello.worker_id = id;
    hello.machine = machine;
    hello.incarnation = "i";
    hello.version = kVersion;
    hello.api_level = kApiLevel;
    hello.profile.host = "host-" + id;
    hello.profile.cores = 1;
    hello.profile.memory_limit_bytes = 1 << 30;
    hello.profile.loopback_bytes_per_second = 5e9;
    hello.profile.network_bytes_per_second = given;
    for (int index = 0; index < gpus; ++index) {
      DeviceSpec& device = hello.profile.devices.emplace_back();
      device.index = index;
      device.memory_bytes = device.memory_limit_bytes = 1 << 30;
    }
    service_->Attach(link, hello);
    EXPECT_TRUE(link->Saw("registered"));
    return link;
  }
  /// The one that listens says its port, the other one the rates.
  void Measure(const std::shared_ptr<FakeLink>& listener, const std::shared_ptr<FakeLink>& dialler,
               int64_t request, double rate, const std::string& host) {
    const std::string measure = "measure " + std::to_string(request);
    ASSERT_TRUE(listener->Saw(measure));
    service_->ReportLink(listener, {request, "", 4242});
    ASSERT_TRUE(dialler->Saw(measure + " " + host + ":4242"));
    service_->ReportLink(dialler, {request, "", 0, 2 * rate, rate, 2e-4});
    Settle();
  }
  /// All that was posted before is done.
  void Settle() {
    std::promise<void> done;
    service_->Ping([&] { done.set_value(); });
    done.get_future().wait();
  }
  WorkerView View(const std::string& id) {
    for (WorkerView& view : service_->Workers()) {
      if (view.profile.worker_id == id) return view;
    }
    ADD_FAILURE() << "no worker " << id;
    return {};
  }
  void AwaitStored(size_t links) {
    for (int i = 0; i < 5000 && store_->ListLinks()->size() != links; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_THAT(*store_->ListLinks(), SizeIs(links));
  }
  static constexpr milliseconds kMoment{50};
};

TEST_F(LinksTest, WorkersOnDifferentMachinesMeasureAndPlansUseTheRate) {
  auto one = Join("w1", "m1");
  EXPECT_EQ(View("w1").network_source, NetworkSource::kAssumed);
  EXPECT_EQ(View("w1").network_bytes_per_second, 5e9) << "as fast as loopback";
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  for (const char* id : {"w1", "w2"}) {
    const WorkerView view = View(id);
    EXPECT_EQ(view.network_source, NetworkSource::kMeasured);
    EXPECT_DOUBLE_EQ(view.network_bytes_per_second, 1e8) << "the slower direction";
    EXPECT_DOUBLE_EQ(view.profile.network_bytes_per_second, 1e8);
    EXPECT_DOUBLE_EQ(view.profile.network_latency_seconds, 1e-4);
    ASSERT_THAT(view.links, SizeIs(1));
    EXPECT_DOUBLE_EQ(view.links[0].latency_seconds, 1e-4);
  }
  EXPECT_THAT(metrics_.Text(), HasSubstr("weft_coord_link_bytes_per_second{machine=\"m1\","
                                         "peer=\"m2\"} 100000000"));
  // It is known after a restart, and not measured again.
  StartService();
  one = Join("w1", "m1");
  two = Join("w2", "m2");
  EXPECT_DOUBLE_EQ(View("w2").profile.network_bytes_per_second, 1e8);
  EXPECT_FALSE(one->Saw("measure", kMoment));
}

TEST_F(LinksTest, WorkersOfOneMachineOrOfNoneDoNot) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m1");
  auto three = Join("w3", "");
  auto four = Join("w4", "");
  for (const auto& link : {one, two, three, four}) EXPECT_FALSE(link->Saw("measure", kMoment));
}

TEST_F(LinksTest, MachinesOfOneKindGetOneRateAndNewRatesComeTogether) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  auto three = Join("w3", "m3");
  EXPECT_EQ(View("w3").network_source, NetworkSource::kMeasured);
  EXPECT_DOUBLE_EQ(View("w3").profile.network_bytes_per_second, 1e8) << "as others of its kind";
  Measure(one, three, 2, 1e9, "host-w1");
  Measure(two, three, 3, 1e9, "host-w2");
  EXPECT_DOUBLE_EQ(View("w3").profile.network_bytes_per_second, 1e8) << "plans have some rest";
  Pass(31, {one, two, three});
  Settle();
  for (const char* id : {"w1", "w2", "w3"}) {
    EXPECT_DOUBLE_EQ(View(id).profile.network_bytes_per_second, 1e9);
  }
}

TEST_F(LinksTest, WorkersOfOneMachineMayHaveDifferentHosts) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  auto beside = Join("w3", "m1");
  EXPECT_THAT(View("w1").links, SizeIs(1));
  EXPECT_DOUBLE_EQ(View("w3").profile.network_bytes_per_second, 1e8);
  EXPECT_FALSE(two->Saw("measure 2", kMoment));
}

TEST_F(LinksTest, WhatTheWorkerWasStartedWithWinsOverWhatIsMeasured) {
  auto one = Join("w1", "m1", 7e9);
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  EXPECT_EQ(View("w1").network_source, NetworkSource::kGiven);
  EXPECT_DOUBLE_EQ(View("w1").profile.network_bytes_per_second, 7e9);
  EXPECT_DOUBLE_EQ(View("w2").profile.network_bytes_per_second, 1e8);
}

TEST_F(LinksTest, PlansOfGpusUseTheRateAsThoseOfProcessorsDo) {
  auto one = Join("w1", "m1", 0, 8);
  EXPECT_EQ(View("w1").network_source, NetworkSource::kAssumed);
  auto two = Join("w2", "m2", 0, 8);
  Measure(one, two, 1, 1e8, "host-w1");
  for (const char* id : {"w1", "w2"}) {
    EXPECT_EQ(View(id).network_source, NetworkSource::kMeasured);
    EXPECT_DOUBLE_EQ(View(id).profile.network_bytes_per_second, 1e8);
    EXPECT_DOUBLE_EQ(View(id).profile.network_latency_seconds, 1e-4);
  }
}

TEST_F(LinksTest, MachinesWithGpusAreAKindOfTheirOwn) {
  auto one = Join("w1", "m1", 0, 8);
  auto two = Join("w2", "m2", 0, 8);
  Measure(one, two, 1, 1e9, "host-w1");
  auto three = Join("w3", "m3");
  auto four = Join("w4", "m4", 0, 2);
  EXPECT_EQ(View("w3").network_source, NetworkSource::kAssumed) << "it has no GPUs";
  EXPECT_EQ(View("w4").network_source, NetworkSource::kAssumed) << "it has fewer";
  auto five = Join("w5", "m5", 0, 8);
  EXPECT_DOUBLE_EQ(View("w5").profile.network_bytes_per_second, 1e9);
}

TEST_F(LinksTest, ThatAWorkerWithGpusWasStartedWithWinsToo) {
  auto one = Join("w1", "m1", 5e10, 8);
  auto two = Join("w2", "m2", 0, 8);
  Measure(one, two, 1, 1e8, "host-w1");
  EXPECT_EQ(View("w1").network_source, NetworkSource::kGiven);
  EXPECT_DOUBLE_EQ(View("w1").profile.network_bytes_per_second, 5e10) << "as over InfiniBand";
  EXPECT_EQ(View("w1").profile.network_latency_seconds, 0) << "that of TCP says nothing of it";
  EXPECT_DOUBLE_EQ(View("w2").profile.network_bytes_per_second, 1e8);
}

TEST_F(LinksTest, JobsWaitForARunningMeasurementAndNoneBeginsWhileRanksRun) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  ASSERT_TRUE(one->Saw("measure 1"));
  const std::string id = Submit(2)->view.job.id;
  EXPECT_FALSE(one->Saw("start", kMoment));
  Measure(one, two, 1, 1e8, "host-w1");
  EXPECT_TRUE(one->Saw("start " + id));
  EXPECT_TRUE(two->Saw("start " + id));
  auto three = Join("w3", "m3");
  EXPECT_FALSE(three->Saw("measure", kMoment)) << "the others have ranks";
  for (const auto& link : {one, two}) FinishAttempt(link, id);
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  EXPECT_TRUE(one->Saw("measure 2")) << "between the newcomer and the first of the others";
}

TEST_F(LinksTest, NoFurtherMeasurementBeginsWhileAJobWaits) {
  auto one = Join("w1", "m1", 1e9);
  auto two = Join("w2", "m2", 1e9);
  ASSERT_TRUE(one->Saw("measure 1"));
  auto three = Join("w3", "m3", 1e9);
  auto four = Join("w4", "m4", 1e9);
  ASSERT_TRUE(three->Saw("measure 2"));
  auto five = Join("w5", "m5", 1e9);
  const std::string id = Submit(4)->view.job.id;
  for (int i = 0; i < 5000 && service_->Get(id)->job.reason != Reason::kWaitingForCapacity; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  Measure(one, two, 1, 1e8, "host-w1");
  EXPECT_FALSE(five->Saw("measure", kMoment));
  Measure(three, four, 2, 1e8, "host-w3");
  EXPECT_TRUE(one->Saw("start " + id));
  EXPECT_FALSE(five->Saw("measure", kMoment));
}

TEST_F(LinksTest, APeerThatDoesNotAnswerHoldsUpNobody) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  ASSERT_TRUE(one->Saw("measure 1"));
  const std::string id = Submit(2)->view.job.id;
  Pass(3, {one, two});
  EXPECT_TRUE(two->Saw("start " + id));
  ASSERT_THAT(View("w2").links, SizeIs(1));
  EXPECT_THAT(View("w2").links[0].error, HasSubstr("did not open a port"));
  EXPECT_EQ(View("w2").network_source, NetworkSource::kAssumed);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("weft_coord_link_measurements_total{outcome=\"failed\"} 1"));
  // What comes late is of no use, nor what another worker says.
  service_->ReportLink(two, {1, "", 0, 1e8, 1e8, 1e-4});
  Settle();
  EXPECT_EQ(View("w2").network_source, NetworkSource::kAssumed);
}

TEST_F(LinksTest, AWorkerThatCannotMeasureSaysWhyAndIsAskedAgainLater) {
  options_.link_retry = seconds(20);
  StartService();
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  ASSERT_TRUE(one->Saw("measure 1"));
  service_->ReportLink(one, {1, "the worker runs ranks"});
  Settle();
  ASSERT_THAT(View("w1").links, SizeIs(1));
  EXPECT_EQ(View("w1").links[0].error, "the worker runs ranks");
  Pass(10, {one, two});
  EXPECT_FALSE(one->Saw("measure 2", kMoment));
  Pass(10, {one, two});
  EXPECT_TRUE(one->Saw("measure 2"));
  // It goes in the middle.
  service_->Detach(two);
  Settle();
  EXPECT_THAT(View("w1").links[0].error, HasSubstr("lost its connection"));
}

TEST_F(LinksTest, AJobGoesToTheMachinesWithTheFasterLinks) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  auto three = Join("w3", "m3");
  Measure(one, three, 2, 1e8, "host-w1");
  Measure(two, three, 3, 1e9, "host-w2");
  const std::string id = Submit(2)->view.job.id;
  EXPECT_TRUE(two->Saw("start " + id));
  EXPECT_TRUE(three->Saw("start " + id));
  EXPECT_FALSE(one->Saw("start", kMoment));
}

/// OneRankEach whose steps take as long as a gigabyte takes on the slowest network of the machines.
Result<PlanReport> ByTheNetwork(const JobSpec& spec, const ClusterProfile& cluster) {
  WEFT_ASSIGN_OR_RETURN(PlanReport report, OneRankEach(spec, cluster));
  double slowest = 5e9;
  for (const WorkerProfile& worker : cluster.workers) {
    if (worker.network_bytes_per_second > 0) {
      slowest = std::min(slowest, worker.network_bytes_per_second);
    }
  }
  Prediction& prediction = report.candidates[0].plan.prediction;
  prediction.step_seconds = prediction.time.exposed_communication_seconds = 1e9 / slowest;
  return report;
}

TEST_F(LinksTest, StepsArePredictedWithTheLinksOfThePlaceThatAJobGets) {
  planner_ = AtOnce(ByTheNetwork);
  StartService();
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  auto three = Join("w3", "m3");
  Measure(one, three, 2, 1e8, "host-w1");
  Measure(two, three, 3, 1e9, "host-w2");
  ASSERT_DOUBLE_EQ(View("w2").profile.network_bytes_per_second, 1e8) << "that of its kind";
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(two->Saw("start " + id));
  ASSERT_TRUE(three->Saw("start " + id));
  const Plan plan = two->last_start().plan;
  EXPECT_THAT(plan.rank_workers, UnorderedElementsAre("w2", "w3"));
  EXPECT_DOUBLE_EQ(plan.prediction.step_seconds, 1) << "not the ten of its kind";
  EXPECT_DOUBLE_EQ(plan.prediction.time.exposed_communication_seconds, 1);
  EXPECT_EQ(plan.prediction.memory_per_rank.activations_bytes, 2000) << "as it was";
}

TEST_F(LinksTest, StepsOnGpusArePredictedWithTheLinksOfThePlaceToo) {
  planner_ = AtOnce(ByTheNetwork);
  StartService();
  auto one = Join("w1", "m1", 0, 1);
  auto two = Join("w2", "m2", 0, 1);
  Measure(one, two, 1, 1e8, "host-w1");
  auto three = Join("w3", "m3", 0, 1);
  Measure(one, three, 2, 1e8, "host-w1");
  Measure(two, three, 3, 1e9, "host-w2");
  JobSpec spec;
  spec.name = "job";
  spec.data.train = {"/data/a"};
  spec.train.global_batch = 16;
  spec.resources.ranks = 2;
  spec.resources.device = "cuda";
  std::promise<std::string> submitted;
  service_->Submit(spec, "gpus", [&](const Result<SubmitResult>& result) {
    submitted.set_value(result.ok() ? result->view.job.id : result.status().message());
  });
  const std::string id = submitted.get_future().get();
  ASSERT_TRUE(two->Saw("start " + id));
  ASSERT_TRUE(three->Saw("start " + id));
  const Plan plan = two->last_start().plan;
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_THAT(plan.rank_workers, UnorderedElementsAre("w2", "w3"));
  EXPECT_DOUBLE_EQ(plan.prediction.step_seconds, 1) << "not the ten of its kind";
}

TEST_F(LinksTest, OneSlowLinkOfThePlaceMakesStepsLonger) {
  planner_ = AtOnce(ByTheNetwork);
  StartService();
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e9, "host-w1");
  auto three = Join("w3", "m3");
  Measure(one, three, 2, 1e9, "host-w1");
  Measure(two, three, 3, 1e8, "host-w2");
  ASSERT_DOUBLE_EQ(View("w2").profile.network_bytes_per_second, 1e9);
  const std::string id = Submit(3)->view.job.id;
  ASSERT_TRUE(one->Saw("start " + id));
  EXPECT_DOUBLE_EQ(one->last_start().plan.prediction.step_seconds, 10);
}

TEST_F(LinksTest, TheRateThatAWorkerWasStartedWithStaysThatOfThePlace) {
  planner_ = AtOnce(ByTheNetwork);
  StartService();
  auto one = Join("w1", "m1", 1e9);
  auto two = Join("w2", "m2", 1e9);
  Measure(one, two, 1, 1e8, "host-w1");
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(one->Saw("start " + id));
  EXPECT_DOUBLE_EQ(one->last_start().plan.prediction.step_seconds, 1);
}

TEST_F(LinksTest, OldOnesAreMeasuredAgainOnceNobodyTrains) {
  options_.link_age = seconds(20);
  options_.retention.sweep_every = seconds(5);
  StartService();
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  Pass(20, {one, two});
  EXPECT_FALSE(one->Saw("measure 2", kMoment)) << "it is not old yet";
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(two->Saw("start " + id));
  Pass(40, {one, two}, {{id, 1, {}}});
  EXPECT_FALSE(one->Saw("measure 2", kMoment)) << "both train";
  for (const auto& link : {one, two}) FinishAttempt(link, id);
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  Measure(one, two, 2, 3e8, "host-w1");
  EXPECT_DOUBLE_EQ(View("w1").links[0].bytes_per_second, 3e8);
  // Nothing else happens, and it is measured again all the same.
  Pass(26, {one, two});
  EXPECT_TRUE(one->Saw("measure 3"));
}

TEST_F(LinksTest, WhileAJobWaitsOldOnesAreMeasuredAgainAfterTwiceAsLong) {
  options_.link_age = seconds(20);
  options_.retention.sweep_every = seconds(5);
  StartService();
  const std::array busy = {Join("a1", ""), Join("a2", "")};
  const std::string running = Submit(2)->view.job.id;
  for (const auto& each : busy) ASSERT_TRUE(each->Saw("start " + running));
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  const std::string waiting = Submit(4)->view.job.id;
  for (int i = 0; i < 5000 && service_->Get(waiting)->job.reason != Reason::kWaitingForCapacity;
       ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const auto pass = [&](int duration) {
    for (int i = 0; i < duration; ++i) {
      for (const auto& each : busy) {
        const int64_t sequence = ++heartbeats_;
        service_->Heartbeat(each, sequence, {{running, 1, {}}}, false);
        ASSERT_TRUE(each->Saw("heartbeat " + std::to_string(sequence)));
      }
      Pass(1, {one, two});
    }
    Settle();
  };
  pass(38);
  EXPECT_FALSE(one->Saw("measure 2", kMoment)) << "a job waits";
  pass(8);
  EXPECT_TRUE(one->Saw("measure 2"));
}

TEST_F(LinksTest, AreForgottenLongAfterTheMachine) {
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  Measure(one, two, 1, 1e8, "host-w1");
  service_->Detach(two);
  AwaitStored(1);
  for (int hour = 0; hour < 30; ++hour) {
    clock_.Advance(std::chrono::hours(1));
    service_->Wake();
    Settle();
  }
  AwaitStored(0);
}

TEST_F(LinksTest, NoneIsMeasuredWhereThatIsSwitchedOff) {
  options_.links_per_machine = 0;
  StartService();
  auto one = Join("w1", "m1");
  auto two = Join("w2", "m2");
  EXPECT_FALSE(one->Saw("measure", kMoment));
  EXPECT_FALSE(two->Saw("measure", kMoment));
}

}  // namespace
}  // namespace weft::coordinator
