// Workers on different machines measure the network between them when they join, and plans use it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

/// Worker `index` says that it is on a machine of its own.
Environment OnMachine(int index) {
  return {{"WEFT_WORKER_MACHINE", "machine-" + std::to_string(index)}};
}

/// At most 13 MB/s to and from that worker.
Environment OnSlowMachine(int index) {
  Environment environment = OnMachine(index);
  environment["WEFT_FAILPOINTS"] = "worker.link.chunk=sleep:20";
  return environment;
}

class Network : public ::testing::Test {
 protected:
  Network() : cluster_({.workers = 2, .cores = 1, .lease_seconds = 10}) {}

  /// Both end and start again, so that they are where the environments say. What the first start
  /// measured of the machine itself is kept.
  void Restart(const Environment& first, const Environment& second) {
    for (int worker : {0, 1}) {
      cluster_.worker(worker).Signal(SIGTERM);
      ASSERT_TRUE(cluster_.worker(worker).WaitForEnd(seconds(20)));
    }
    cluster_.StartWorker(0, first);
    cluster_.StartWorker(1, second);
    cluster_.AwaitWorkers(2);
  }
  v1::Worker Worker(int index) {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(cluster_.api().ListWorkers(&context, v1::ListWorkersRequest(), &response).ok());
    for (const v1::Worker& worker : response.workers()) {
      if (worker.profile().worker_id() == "worker-" + std::to_string(index)) return worker;
    }
    return {};
  }
  bool AwaitSource(int index, v1::NetworkSource source) {
    return Eventually([&] { return Worker(index).network().source() == source; }, seconds(20));
  }
  /// Predicts a step of a job on both workers, planned for the attached ones or a cluster file.
  double StepSeconds(const v1::ClusterProfile* file = nullptr) {
    grpc::ClientContext context;
    v1::PlanJobRequest request;
    *request.mutable_spec() = cluster_.TinyJob("planned");
    request.mutable_spec()->mutable_resources()->set_threads_per_rank(1);
    if (file != nullptr) *request.mutable_cluster() = *file;
    v1::PlanReport report;
    const grpc::Status status = cluster_.api().PlanJob(&context, request, &report);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (report.candidates().empty()) return 0;
    return report.candidates(0).plan().prediction().step_seconds();
  }

  Cluster cluster_;
};

TEST_F(Network, BetweenMachinesIsMeasuredAndPlannedWith) {
  // Two workers of one machine have nothing to measure.
  EXPECT_EQ(Worker(0).machine(), Worker(1).machine());
  EXPECT_EQ(Worker(0).network().source(), v1::ASSUMED);
  const double assumed = StepSeconds();
  Restart(OnMachine(0), OnSlowMachine(1));
  for (int index : {0, 1}) {
    ASSERT_TRUE(AwaitSource(index, v1::MEASURED)) << cluster_.LogTails();
    const v1::Worker worker = Worker(index);
    EXPECT_GT(worker.network().bytes_per_second(), 1e6);
    EXPECT_LT(worker.network().bytes_per_second(), 15e6);
    EXPECT_GT(worker.profile().loopback_bytes_per_second(), 100e6);
    ASSERT_EQ(worker.network().links_size(), 1);
    EXPECT_EQ(worker.network().links(0).machine(), "machine-" + std::to_string(1 - index));
    EXPECT_GT(worker.network().links(0).latency_seconds(), 0);
  }
  const double measured = StepSeconds();
  EXPECT_GT(measured, 1.5 * assumed);
  // What the user says goes first.
  v1::ClusterProfile file;
  for (int index : {0, 1}) {
    *file.add_workers() = Worker(index).profile();
    file.mutable_workers(index)->set_network_bytes_per_second(1e11);
  }
  EXPECT_LT(StepSeconds(&file), measured / 1.5);
  CheckMetrics(cluster_.CoordinatorMetrics());
  const auto shown =
      MetricValue(cluster_.CoordinatorMetrics(),
                  "weft_coord_link_bytes_per_second{machine=\"machine-0\",peer=\"machine-1\"}");
  ASSERT_TRUE(shown);
  EXPECT_LT(*shown, 15e6);
  // A job runs on both, and the rate outlives the coordinator.
  cluster_.Await(cluster_.Submit(cluster_.TinyJob("job")), v1::SUCCEEDED);
  cluster_.coordinator().Signal(SIGTERM);
  ASSERT_TRUE(cluster_.coordinator().WaitForEnd(seconds(10)));
  cluster_.StartCoordinator();
  cluster_.AwaitWorkers(2);
  EXPECT_EQ(Worker(1).network().source(), v1::MEASURED);
  EXPECT_EQ(MetricSum(cluster_.CoordinatorMetrics(), "weft_coord_link_measurements_total"), 0)
      << "it was not measured again";
}

TEST_F(Network, ThatAWorkerWasStartedWithGoesBeforeWhatIsMeasured) {
  Environment told = OnSlowMachine(1);
  told["WEFT_WORKER_NETWORK_GBPS"] = "10";
  Restart(OnMachine(0), told);
  ASSERT_TRUE(AwaitSource(0, v1::MEASURED)) << cluster_.LogTails();
  EXPECT_EQ(Worker(1).network().source(), v1::GIVEN);
  EXPECT_DOUBLE_EQ(Worker(1).profile().network_bytes_per_second(), 1.25e9);
}

TEST_F(Network, APeerThatIsFrozenHoldsUpNeitherTheNewcomerNorItsJobs) {
  Restart(OnMachine(0), OnMachine(1));
  ASSERT_TRUE(AwaitSource(0, v1::MEASURED)) << cluster_.LogTails();
  // The newcomer is on a third machine, and the one peer that there is does not answer.
  cluster_.worker(0).Signal(SIGTERM);
  ASSERT_TRUE(cluster_.worker(0).WaitForEnd(seconds(20)));
  cluster_.worker(1).Signal(SIGSTOP);
  cluster_.StartWorker(0, OnMachine(2));
  ASSERT_TRUE(Eventually(
      [&] {
        const v1::Worker worker = Worker(0);
        return worker.state() == v1::READY && worker.machine() == "machine-2";
      },
      seconds(8)))
      << cluster_.LogTails();
  cluster_.Await(cluster_.Submit(cluster_.TinyJob("alone", 5, 1)), v1::SUCCEEDED, seconds(30));
  EXPECT_EQ(Worker(0).network().source(), v1::MEASURED) << "as the other machine of its kind";
  ASSERT_EQ(Worker(0).network().links_size(), 1);
  EXPECT_THAT(Worker(0).network().links(0).error(), HasSubstr("did not open a port"));
  cluster_.worker(1).Signal(SIGCONT);
}

}  // namespace
}  // namespace weft::testing
