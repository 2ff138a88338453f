// Ranks come and go while a job in rounds by time runs, and its attempt goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

bool HasEvent(Cluster& cluster, const std::string& id, const std::string& kind) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::ListEventsRequest request;
  request.set_job_id(id);
  v1::ListEventsResponse response;
  if (!cluster.api().ListEvents(&context, request, &response).ok()) return false;
  for (const v1::JobEvent& event : response.events()) {
    if (event.kind() == kind) return true;
  }
  return false;
}

void AwaitEvent(Cluster& cluster, const std::string& id, const std::string& kind) {
  EXPECT_TRUE(Eventually([&] { return HasEvent(cluster, id, kind); }, seconds(60)))
      << kind << cluster.LogTails();
}

/// A rank on each worker, and rounds of half a second.
v1::JobSpec RoundsJob(const Cluster& cluster, const std::string& name, int64_t steps) {
  v1::JobSpec spec = cluster.OpenJob(name, steps);
  spec.mutable_train()->set_local_round_seconds(0.5);
  return spec;
}

/// Waits until this number of ranks trains it.
void AwaitRanks(Cluster& cluster, const std::string& id, int ranks) {
  const auto trained_by = [&] {
    const v1::Job job = cluster.Get(id);
    return job.attempts_size() > 0 && job.state() == v1::RUNNING &&
           job.attempts(job.attempts_size() - 1).plan().rank_workers_size() == ranks;
  };
  EXPECT_TRUE(Eventually(trained_by, seconds(60))) << ranks << " ranks" << cluster.LogTails();
}

const Environment kSlowSteps{{"WEFT_FAILPOINTS", "trainer.before_step=sleep:60"}};

TEST(Peers, TheAttemptGoesOnWhenAWorkerIsLostAndComesBack) {
  for (const int lost : {1, 0}) {
    SCOPED_TRACE(lost);
    Cluster cluster({.workers = 2, .cores = 1, .ranks = kSlowSteps});
    const std::string id = cluster.Submit(RoundsJob(cluster, "peers", 300));
    cluster.AwaitStep(id, 8);
    AwaitRanks(cluster, id, 2);
    const int64_t membership = cluster.Get(id).attempts(0).membership();
    cluster.worker(lost).Kill();
    AwaitEvent(cluster, id, "peer left");
    const int64_t step = cluster.Get(id).progress().step();
    cluster.AwaitStep(id, step + 4);
    AwaitRanks(cluster, id, 1);

    cluster.StartWorker(lost, kSlowSteps);
    AwaitEvent(cluster, id, "peer joined");
    AwaitRanks(cluster, id, 2);
    const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
    ASSERT_EQ(job.attempts_size(), 1) << "no checkpoint was read";
    EXPECT_EQ(job.attempts(0).membership(), membership + 2) << "one left, one joined";
    EXPECT_THAT(job.summary_json(), HasSubstr("\"steps\":300"));
    const std::vector<double> losses = cluster.Losses(id);
    ASSERT_GT(losses.size(), 4u);
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_EQ(cluster.Checkpoints(id).front().step(), 300);
    const std::string metrics = cluster.CoordinatorMetrics();
    CheckMetrics(metrics);
    EXPECT_GE(MetricValue(metrics, "weft_coord_peers_joined_total").value_or(0), 1);
    EXPECT_EQ(MetricValue(metrics, "weft_coord_peers_left_total"), 1);
  }
}

TEST(Peers, ARankThatIsKilledAloneLeavesTheOthersTraining) {
  Cluster cluster({.workers = 2, .cores = 1, .ranks = kSlowSteps});
  const std::string id = cluster.Submit(RoundsJob(cluster, "killed", 60));
  AwaitRanks(cluster, id, 2);
  cluster.AwaitStep(id, 8);
  const std::vector<pid_t> ranks = cluster.RankPids(id, 1);
  ASSERT_EQ(ranks.size(), 1u);
  kill(ranks[0], SIGKILL);
  AwaitEvent(cluster, id, "peer left");
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 1)
      << "not at once again where it has just failed";
}

TEST(Peers, AWorkerThatDrainsLeavesAtAnOuterStep) {
  Cluster cluster({.workers = 2, .cores = 1, .ranks = kSlowSteps});
  const std::string id = cluster.Submit(RoundsJob(cluster, "drains", 80));
  AwaitRanks(cluster, id, 2);
  cluster.AwaitStep(id, 8);
  cluster.worker(1).Signal(SIGTERM);
  const auto status = cluster.worker(1).WaitForEnd(seconds(30));
  ASSERT_TRUE(status && WIFEXITED(*status)) << cluster.LogTails();
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  EXPECT_TRUE(HasEvent(cluster, id, "peer left"));
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
  EXPECT_EQ(job.attempts_size(), 1);
}

TEST(Peers, WithFewerThanTheLeastTheJobStartsAnew) {
  Cluster cluster({.workers = 2, .cores = 1, .ranks = kSlowSteps});
  v1::JobSpec spec = RoundsJob(cluster, "least", 60);
  spec.mutable_resources()->set_min_ranks(2);
  const std::string id = cluster.Submit(spec);
  AwaitRanks(cluster, id, 2);
  cluster.AwaitStep(id, 8);
  cluster.worker(1).Kill();
  cluster.StartWorker(1, kSlowSteps);
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
  EXPECT_EQ(job.attempts_size(), 2);
  EXPECT_FALSE(HasEvent(cluster, id, "peer left"));
}

}  // namespace
}  // namespace weft::testing
