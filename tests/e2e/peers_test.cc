// Ranks come and go while a job in rounds by time runs, and its attempt goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;

/// How often that has happened to the job; `text` as the event says it, or empty for any.
int CountEvents(Cluster& cluster, const std::string& id, const std::string& kind,
                const std::string& text = "") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::ListEventsRequest request;
  request.set_job_id(id);
  v1::ListEventsResponse response;
  if (!cluster.api().ListEvents(&context, request, &response).ok()) return 0;
  return static_cast<int>(std::count_if(
      response.events().begin(), response.events().end(), [&](const v1::JobEvent& event) {
        return event.kind() == kind && (text.empty() || event.text() == text);
      }));
}

void AwaitEvent(Cluster& cluster, const std::string& id, const std::string& kind, int times = 1,
                const std::string& text = "") {
  EXPECT_TRUE(
      Eventually([&] { return CountEvents(cluster, id, kind, text) >= times; }, seconds(60)))
      << kind << " " << text << cluster.LogTails();
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

/// Waits for a few more steps than there are.
void AwaitMoreSteps(Cluster& cluster, const std::string& id) {
  cluster.AwaitStep(id, cluster.Get(id).progress().step() + 4);
}

TEST(Peers, TheAttemptGoesOnWhenAWorkerIsLostAndComesBack) {
  // More steps than the test waits for: it pauses the job when it has seen enough.
  constexpr int64_t kSteps = 100000;
  Cluster cluster({.workers = 2, .cores = 1, .ranks = kSlowSteps});
  const std::string id = cluster.Submit(RoundsJob(cluster, "peers", kSteps));
  cluster.AwaitStep(id, 8);
  AwaitRanks(cluster, id, 2);
  const int64_t membership = cluster.Get(id).attempts(0).membership();
  int losses = 0;
  // The first of the ranks is on worker 0, until that is lost.
  for (const int lost : {1, 0}) {
    SCOPED_TRACE(lost);
    ++losses;
    cluster.worker(lost).Kill();
    AwaitEvent(cluster, id, "peer left", losses);
    AwaitRanks(cluster, id, 1);
    AwaitMoreSteps(cluster, id);
    cluster.StartWorker(lost, kSlowSteps);
    AwaitEvent(cluster, id, "peer joined", losses);
    AwaitRanks(cluster, id, 2);
    // It has the state from then on.
    AwaitEvent(cluster, id, "report", 2, "worker-" + std::to_string(lost) + ": training");
    AwaitMoreSteps(cluster, id);
  }

  v1::PauseJobRequest request;
  request.set_id(id);
  v1::Job asked;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  ASSERT_TRUE(cluster.api().PauseJob(&context, request, &asked).ok());
  const v1::Job job = cluster.Await(id, v1::PAUSED);
  ASSERT_EQ(job.attempts_size(), 1) << "no checkpoint was read";
  EXPECT_EQ(job.attempts(0).membership(), membership + 4) << "two left, two joined";
  const std::vector<double> curve = cluster.Losses(id);
  ASSERT_GT(curve.size(), 4u);
  EXPECT_LT(curve.back(), curve.front());
  // Both have saved what all have come to.
  const v1::Checkpoint newest = cluster.Checkpoints(id).front();
  EXPECT_EQ(newest.step(), job.progress().step());
  EXPECT_TRUE(newest.verified());
  for (const char* file : {"state-00000-of-00002", "state-00001-of-00002"}) {
    EXPECT_EQ(access((newest.path() + "/" + file + ".safetensors").c_str(), R_OK), 0) << file;
  }
  const std::string metrics = cluster.CoordinatorMetrics();
  CheckMetrics(metrics);
  EXPECT_GE(MetricValue(metrics, "weft_coord_peers_joined_total").value_or(0), 2);
  EXPECT_EQ(MetricValue(metrics, "weft_coord_peers_left_total"), 2);
}

TEST(Peers, TheLastRankWithTheStateIsLostWhileAnotherJoins) {
  // The rank that joins waits for the end of a step that never comes.
  const Environment slow{{"WEFT_FAILPOINTS", "trainer.before_step=sleep:700"}};
  Cluster cluster({.workers = 2, .cores = 1, .ranks = slow});
  const std::string id = cluster.Submit(RoundsJob(cluster, "last", 10));
  AwaitRanks(cluster, id, 2);
  cluster.AwaitStep(id, 4);
  cluster.worker(1).Kill();
  AwaitEvent(cluster, id, "peer left");
  cluster.StartWorker(1, kSlowSteps);
  AwaitEvent(cluster, id, "peer joined");
  cluster.worker(0).Kill();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
  EXPECT_EQ(job.attempts_size(), 2) << "from a checkpoint";
}

TEST(Peers, ARankThatIsKilledAmidACheckpointCostsThatCheckpointAlone) {
  // Of two ranks the second one alone writes what is no more than a share.
  const Environment dies{
      {"WEFT_FAILPOINTS", "trainer.before_step=sleep:60,checkpoint.before_share=crash@2"}};
  Cluster cluster({.workers = 2, .cores = 1, .ranks = dies});
  const std::string id = cluster.Submit(RoundsJob(cluster, "amid", 60));
  AwaitRanks(cluster, id, 2);
  AwaitEvent(cluster, id, "peer left");
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(180));
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 1);
  const std::vector<v1::Checkpoint> checkpoints = cluster.Checkpoints(id);
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints.front().step(), 60);
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    EXPECT_TRUE(checkpoint.verified()) << checkpoint.path();
  }
  for (const auto& entry :
       std::filesystem::directory_iterator(cluster.RunDir(id) + "/checkpoints")) {
    EXPECT_EQ(entry.path().filename().string().rfind("step-", 0), 0u) << entry.path();
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
  EXPECT_EQ(CountEvents(cluster, id, "peer left"), 1);
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
  EXPECT_EQ(CountEvents(cluster, id, "peer left"), 0);
}

}  // namespace
}  // namespace weft::testing
