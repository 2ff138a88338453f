// No step is lost when workers shut down, whoever they are and whatever their ranks do just then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <sstream>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const Environment kSlowSteps = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}};

/// Two ranks on two workers that save nothing unless they are asked to stop.
v1::JobSpec UnsavedJob(const Cluster& cluster, int64_t every_steps = 100000) {
  v1::JobSpec spec = cluster.TinyJob("drained", 100000);
  spec.mutable_checkpoint()->set_every_steps(every_steps);
  spec.mutable_resources()->set_threads_per_rank(1);
  return spec;
}

class Drain : public ::testing::Test {
 protected:
  Drain() : cluster_({.cores = 1, .lease_seconds = 10, .ranks = kSlowSteps}) {}

  std::string Train(int64_t every_steps = 100000, int64_t step = 12) {
    const std::string id = cluster_.Submit(UnsavedJob(cluster_, every_steps));
    cluster_.AwaitStep(id, step);
    return id;
  }
  void ExpectEnded(int worker) {
    auto status = cluster_.worker(worker).WaitForEnd(seconds(20));
    ASSERT_TRUE(status && WIFEXITED(*status)) << cluster_.LogTails();
    EXPECT_EQ(WEXITSTATUS(*status), 0);
  }
  /// Attempt 2 goes on exactly where attempt 1 stopped; the job is cancelled then.
  void ExpectNoStepLost(const std::string& id) {
    v1::Job job = cluster_.AwaitStep(id, cluster_.Get(id).attempts(0).last_step() + 3);
    ASSERT_EQ(job.attempts_size(), 2) << cluster_.LogTails();
    EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "DRAINED") << job.attempts(0).message();
    EXPECT_EQ(StepsTwice(id), 0);
    Cancel(id);
  }
  /// Steps in the loss curve that do not follow the one before: trained twice, or left out.
  int64_t StepsTwice(const std::string& id) {
    int64_t wrong = 0;
    int64_t last = 0;
    std::istringstream lines(cluster_.LossCurve(id));
    for (std::string line; std::getline(lines, line);) {
      const int64_t step = std::stoll(line.substr(line.find("\"step\":") + 7));
      wrong += step != ++last;
    }
    return wrong;
  }
  void Cancel(const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
    v1::CancelJobRequest request;
    request.set_id(id);
    v1::Job job;
    ASSERT_TRUE(cluster_.api().CancelJob(&context, request, &job).ok());
    cluster_.Await(id, v1::CANCELLED);
  }

  Cluster cluster_;
};

TEST_F(Drain, OfEitherWorkerSavesTheLastStep) {
  for (int victim : {0, 1}) {
    const std::string id = Train();
    cluster_.worker(victim).Signal(SIGTERM);
    ExpectEnded(victim);
    const v1::Job job = cluster_.Await(id, v1::QUEUED);
    const auto checkpoints = cluster_.Checkpoints(id);
    ASSERT_EQ(checkpoints.size(), 1u) << cluster_.LogTails();
    EXPECT_EQ(checkpoints[0].step(), job.attempts(0).last_step());
    cluster_.StartWorker(victim);
    cluster_.AwaitWorkers(2);
    ExpectNoStepLost(id);
  }
}

TEST_F(Drain, OfAllWorkersSavesTheLastStep) {
  const std::string id = Train();
  for (int victim : {0, 1}) cluster_.worker(victim).Signal(SIGTERM);
  for (int victim : {0, 1}) ExpectEnded(victim);
  EXPECT_EQ(cluster_.Checkpoints(id).size(), 1u);
  for (int victim : {0, 1}) cluster_.StartWorker(victim);
  ExpectNoStepLost(id);
}

TEST_F(Drain, DuringAPeriodicCheckpointSavesTheLastStep) {
  const std::string id = Train(/*every_steps=*/1);
  cluster_.worker(1).Signal(SIGTERM);
  ExpectEnded(1);
  cluster_.StartWorker(1);
  ExpectNoStepLost(id);
}

TEST_F(Drain, WhileTheCoordinatorIsAwaySavesTheLastStep) {
  const std::string id = Train();
  cluster_.coordinator().Signal(SIGTERM);
  ASSERT_TRUE(cluster_.coordinator().WaitForEnd(seconds(10)));
  for (int victim : {0, 1}) cluster_.worker(victim).Signal(SIGTERM);
  for (int victim : {0, 1}) ExpectEnded(victim);
  cluster_.StartCoordinator();
  for (int victim : {0, 1}) cluster_.StartWorker(victim);
  cluster_.AwaitWorkers(2);
  ASSERT_TRUE(Eventually([&] { return cluster_.Get(id).attempts_size() == 2; }, seconds(30)));
  // They report what became of the ranks: nobody died, and the checkpoint is in the list.
  EXPECT_FALSE(cluster_.Checkpoints(id).empty());
  ExpectNoStepLost(id);
}

TEST_F(Drain, OfOneWorkerWhileTheCoordinatorIsAwayIsNoFailure) {
  const std::string id = Train();
  cluster_.coordinator().Signal(SIGTERM);
  ASSERT_TRUE(cluster_.coordinator().WaitForEnd(seconds(10)));
  cluster_.worker(1).Signal(SIGTERM);
  ExpectEnded(1);
  cluster_.StartCoordinator();
  cluster_.StartWorker(1);
  cluster_.AwaitWorkers(2);
  ASSERT_TRUE(Eventually([&] { return cluster_.Get(id).attempts_size() == 2; }, seconds(30)));
  ExpectNoStepLost(id);
}

TEST_F(Drain, DuringTheStartLetsTheJobGoOnLater) {
  const std::string id = cluster_.Submit(UnsavedJob(cluster_));
  ASSERT_TRUE(Eventually([&] { return cluster_.Get(id).state() != v1::QUEUED; }, seconds(20)));
  cluster_.worker(1).Signal(SIGTERM);
  ExpectEnded(1);
  cluster_.StartWorker(1);
  v1::Job job = cluster_.AwaitStep(id, 5);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "DRAINED") << job.attempts(0).message();
  EXPECT_EQ(StepsTwice(id), 0);
  Cancel(id);
}

TEST_F(Drain, WithASecondSignalKillsTheRanksAndIsNoFailure) {
  const std::string id = Train();
  // A rank that does not stop: the worker waits for it.
  kill(cluster_.RankPids(id, 1).at(0), SIGSTOP);
  cluster_.worker(1).Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return cluster_.Get(id).state() == v1::RECOVERING; }, seconds(10)));
  EXPECT_TRUE(cluster_.worker(1).Alive());
  cluster_.worker(1).Signal(SIGTERM);
  ExpectEnded(1);
  const v1::Job job = cluster_.Await(id, v1::QUEUED);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "DRAINED") << job.attempts(0).message();
  Cancel(id);
}

}  // namespace
}  // namespace weft::testing
