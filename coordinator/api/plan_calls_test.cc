// Planning as clients and workers of a coordinator notice it: over sockets.
#include <atomic>
#include <functional>
#include <limits>

#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

/// Jobs with recompute "optimal" are planned without end, until the planner is asked to stop.
class PlanCallsTest : public ApiTest {
 protected:
  void SetUp() override {
    plan_ = [this](const JobSpec& spec, const ClusterProfile& cluster,
                   const std::stop_token& stop) -> Result<PlanReport> {
      if (spec.resources.recompute != "optimal") return FakePlan(spec, cluster);
      ++endless_;
      while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
      --endless_;
      return AbortedError("stopped");
    };
    options_.planning.budget = milliseconds(1500);
    options_.planning.patience = milliseconds(300);
    ApiTest::SetUp();
  }
  static v1::JobSpec Endless() {
    v1::JobSpec spec = Spec();
    spec.mutable_resources()->set_recompute("optimal");
    return spec;
  }
  bool AwaitEndless(int count) {
    for (int i = 0; i < 5000 && endless_ != count; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return endless_ == count;
  }

  std::atomic<int> endless_ = 0;
};

TEST_F(PlanCallsTest, AJobThatTakesLongToPlanDisturbsNobody) {
  auto worker = Worker(FakeWorker::Hello("a", 8));
  ASSERT_TRUE(worker->Await(kRegistered));
  const std::string victim = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(victim, 1, v1::ATTEMPT_TRAINING);
  AwaitState(victim, {v1::RUNNING});
  const std::string poison = MustSubmit(Endless());
  ASSERT_TRUE(AwaitEndless(1));
  // Past the budget and past the lease: each heartbeat is answered, and training goes on.
  for (int step = 1; step <= 15; ++step) {
    worker->Heartbeat(victim, 1, step);
    ASSERT_TRUE(worker->Await(v1::CoordinatorMessage::kHeartbeatAck)) << step;
    ASSERT_EQ(Get(victim).progress().step(), step);
    std::this_thread::sleep_for(milliseconds(130));
  }
  EXPECT_EQ(Get(victim).state(), v1::RUNNING);
  EXPECT_EQ(Get(victim).attempts_size(), 1);
  EXPECT_TRUE(AwaitEndless(0));
  const v1::Job waiting = Get(poison);
  EXPECT_EQ(waiting.state(), v1::QUEUED);
  EXPECT_EQ(waiting.reason(), v1::PLANNING);
  EXPECT_THAT(waiting.message(), HasSubstr("longer than the 1.5 s"));
  // Others start meanwhile.
  MustSubmit(Spec());
  EXPECT_TRUE(worker->Await(kStart));
}

TEST_F(PlanCallsTest, AClientThatGoesFreesWhatPlanned) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  v1::PlanJobRequest request;
  *request.mutable_spec() = Endless();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> clients;
  for (int i = 0; i < 20; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    clients.emplace_back([&, context = contexts.back().get()] {
      v1::PlanReport report;
      EXPECT_EQ(jobs_->PlanJob(context, request, &report).error_code(),
                grpc::StatusCode::CANCELLED);
    });
  }
  ASSERT_TRUE(AwaitEndless(2)) << "a bounded number of them";
  // Nobody else waits for these calls.
  const std::string job = MustSubmit(Spec());
  EXPECT_TRUE(worker->Await(kStart));
  EXPECT_EQ(Get(job).state(), v1::STARTING);
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(AwaitEndless(0));
  grpc::ClientContext context;
  *request.mutable_spec() = Spec();
  v1::PlanReport report;
  const grpc::Status status = jobs_->PlanJob(&context, request, &report);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(PlanCallsTest, LinksThatNoClusterHasAreRefused) {
  const auto answer = [this](const std::function<void(v1::ClusterProfile&)>& change) {
    v1::PlanJobRequest request;
    *request.mutable_spec() = Spec();
    for (const char* id : {"a", "b"}) {
      v1::WorkerProfile& worker = *request.mutable_cluster()->add_workers();
      worker = FakeWorker::Hello(id).profile();
      worker.set_network_bytes_per_second(1e9);
    }
    change(*request.mutable_cluster());
    grpc::ClientContext context;
    v1::PlanReport report;
    return jobs_->PlanJob(&context, request, &report);
  };
  const auto with = [](const std::string& one, const std::string& other, double rate) {
    return [=](v1::ClusterProfile& cluster) {
      v1::LinkSpec& link = *cluster.add_links();
      link.add_workers(one);
      link.add_workers(other);
      link.set_bytes_per_second(rate);
    };
  };
  const grpc::Status sound = answer(with("a", "b", 1e8));
  EXPECT_TRUE(sound.ok()) << sound.error_message();
  const grpc::Status unknown = answer(with("a", "c", 1e8));
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(),
              HasSubstr("cluster: links[0]: no machine has the worker_id"));
  for (const double rate : {-1.0, 1e300, 2e9, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(answer(with("a", "b", rate)).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << rate;
  }
  const grpc::Status many = answer([&](v1::ClusterProfile& cluster) {
    for (int i = 0; i < 257; ++i) with("a", "b", 1e8)(cluster);
  });
  EXPECT_EQ(many.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PlanCallsTest, ACoordinatorEndsWhilePlansAreLookedFor) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  MustSubmit(Endless());
  ASSERT_TRUE(AwaitEndless(1));
  worker.reset();
  coordinator_.reset();
  EXPECT_EQ(endless_, 0);
}

}  // namespace
}  // namespace weft::coordinator
