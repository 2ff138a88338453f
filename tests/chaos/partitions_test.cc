// A worker is cut off from the coordinator, in both directions or in one, and comes back.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Direction = NetworkLink::Direction;

/// Slow enough for ranks to be alive until the lease of their worker ends.
constexpr const char* kSlowRanks = "trainer.before_step=sleep:150";

class ChaosOfPartitions : public Chaos {
 protected:
  /// A job with all its ranks on worker 0. Worker 1, whose ranks are faster, takes jobs after that.
  static std::string SubmitToFirst(Cluster& cluster, const std::string& name) {
    cluster.worker(1).Signal(SIGTERM);
    EXPECT_TRUE(cluster.worker(1).WaitForEnd(seconds(10)));
    const std::string id = cluster.Submit(cluster.TinyJob(name, kSteps));
    EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id, 0).size() == 2; }, seconds(20)))
        << cluster.LogTails();
    cluster.StartWorker(1, kSlowSteps);
    cluster.AwaitWorkers(2);
    return id;
  }

  static v1::WorkerState StateOf(Cluster& cluster, int index) {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(cluster.api().ListWorkers(&context, v1::ListWorkersRequest(), &response).ok());
    for (const v1::Worker& worker : response.workers()) {
      if (worker.profile().worker_id() == "worker-" + std::to_string(index)) return worker.state();
    }
    return v1::WORKER_STATE_UNSPECIFIED;
  }

  /// Steps in the loss curve, whether the coordinator has heard of them or not.
  static int64_t StepsOf(const Cluster& cluster, const std::string& id) {
    const std::string curve = cluster.LossCurve(id);
    return std::count(curve.begin(), curve.end(), '\n');
  }

  static double Dials(const Cluster& cluster, int index) {
    return MetricSum(cluster.WorkerMetrics(index), "weft_worker_dials_total");
  }

  /// Cuts worker 0 off until its job trains on worker 1, which must not begin before the ranks of
  /// worker 0 are gone.
  static void CutUntilTheJobHasMoved(Cluster& cluster, const std::string& id, Direction direction) {
    const auto begin = steady_clock::now();
    cluster.link(0).Cut(direction);
    bool both_train = false;
    EXPECT_TRUE(Eventually(
        [&] {
          const v1::Job job = cluster.Get(id);
          const bool newer = job.attempts_size() > 1;
          both_train |= newer && !cluster.RankPids(id, 0).empty();
          return newer && (job.state() == v1::RUNNING || job.state() == v1::SUCCEEDED);
        },
        seconds(30)))
        << cluster.LogTails();
    Report("recovery_seconds", "recovery after a worker is cut off", SecondsSince(begin));
    EXPECT_FALSE(both_train) << "ranks end before their work is given to others";
    EXPECT_EQ(StateOf(cluster, 0), v1::LOST);
    EXPECT_EQ(MetricSum(cluster.WorkerMetrics(0), "weft_worker_lease_expiries_total"), 1)
        << "the worker ends its ranks by its own clock";
  }

  /// The network is whole again: the worker comes back by itself, and nothing that it still says of
  /// the attempt that was given up is taken.
  static void ExpectFencedAfterHealing(Cluster& cluster, const std::string& id) {
    cluster.link(0).Heal();
    EXPECT_TRUE(Eventually([&] { return StateOf(cluster, 0) == v1::READY; }, seconds(10)))
        << cluster.LogTails();
    for (const char* method : {"attach", "report", "logs", "checkpoint"}) {
      const std::string series =
          "weft_coord_fenced_requests_total{method=\"" + std::string(method) + "\"}";
      EXPECT_TRUE(Eventually(
          [&] { return MetricValue(cluster.CoordinatorMetrics(), series).value_or(0) > 0; },
          seconds(5)))
          << series << cluster.LogTails();
    }
    const v1::Job job = ExpectUnharmed(cluster, id);
    ASSERT_EQ(job.attempts_size(), 2);
    EXPECT_EQ(job.attempts(0).reason(), v1::WORKER_LOST);
    for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
      if (checkpoint.step() > job.attempts(1).first_step()) {
        EXPECT_EQ(checkpoint.epoch(), 2) << "of step " << checkpoint.step();
      }
    }
  }
};

TEST_F(ChaosOfPartitions, ThatOutlastALeaseMoveTheJob) {
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", kSlowRanks}}, .cuttable = true});
  const std::string id = SubmitToFirst(cluster, "cut-off");
  cluster.AwaitStep(id, 8);
  CutUntilTheJobHasMoved(cluster, id, Direction::kBoth);
  ExpectFencedAfterHealing(cluster, id);
}

TEST_F(ChaosOfPartitions, DuringASaveLeaveTheCheckpointBeforeIt) {
  // The second checkpoint is not complete before the worker's lease ends.
  const std::string stuck = std::string(kSlowRanks) + ",checkpoint.after_shards=sleep:60000@2";
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", stuck}}, .cuttable = true});
  const std::string id = SubmitToFirst(cluster, "cut-off-saving");
  cluster.AwaitStep(id, 11);
  EXPECT_TRUE(
      Eventually([&] { return cluster.Get(id).progress().checkpoint_step() == 5; }, seconds(5)));
  CutUntilTheJobHasMoved(cluster, id, Direction::kToServer);
  ExpectFencedAfterHealing(cluster, id);
}

TEST_F(ChaosOfPartitions, DuringAStartLetTheJobWaitForItsMachines) {
  // A rank on each worker, so that no other machine can take the place of the one that is cut off.
  Cluster cluster({.cores = 1,
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:800@1"}},
                   .cuttable = true});
  const std::string id = cluster.Submit(cluster.TinyJob("cut-off-starting", kSteps));
  ASSERT_TRUE(Eventually([&] { return !cluster.RankPids(id, 1).empty(); }, seconds(20)))
      << cluster.LogTails();
  cluster.link(1).Cut(Direction::kFromServer);
  EXPECT_TRUE(Eventually([&] { return cluster.Get(id).state() == v1::QUEUED; }, seconds(20)))
      << cluster.LogTails();
  EXPECT_EQ(StateOf(cluster, 1), v1::LOST);
  EXPECT_TRUE(cluster.RankPids(id).empty());
  cluster.link(1).Heal();
  const v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 2) << "the first start that the worker receives again counts";
}

TEST_F(ChaosOfPartitions, ShorterThanALeaseSpendNoAttempt) {
  Cluster cluster({.lease_seconds = 5,
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:200"}},
                   .cuttable = true});
  const std::string id = cluster.Submit(cluster.TinyJob("briefly-cut-off", kSteps));
  cluster.AwaitStep(id, 3);
  const std::vector<pid_t> before = cluster.RankPids(id);
  const int cut = cluster.RankPids(id, 0).empty() ? 1 : 0;
  for (const Direction direction : {Direction::kToServer, Direction::kFromServer}) {
    const int64_t step = cluster.Get(id).progress().step();
    cluster.link(cut).Cut(direction);
    std::this_thread::sleep_for(milliseconds(800));
    cluster.link(cut).Heal();
    cluster.AwaitStep(id, step + 5);
  }
  // So long that the worker gives up its connection.
  const double dials = Dials(cluster, cut);
  const int64_t steps = StepsOf(cluster, id);
  cluster.link(cut).Cut(Direction::kBoth);
  EXPECT_TRUE(Eventually([&] { return Dials(cluster, cut) > dials; }, seconds(10)));
  EXPECT_GT(StepsOf(cluster, id), steps + 5) << "training goes on";
  cluster.link(cut).Heal();
  cluster.AwaitStep(id, StepsOf(cluster, id) + 1);
  EXPECT_EQ(cluster.RankPids(id), before) << "adopted, not started again";
  const v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(MetricSum(cluster.CoordinatorMetrics(), "weft_coord_lease_expirations_total"), 0);
  std::set<int64_t> sequences;
  const std::vector<v1::LogLine> lines = cluster.Logs(id);
  for (const v1::LogLine& line : lines) sequences.insert(line.sequence());
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(sequences.size(), lines.size()) << "no line twice";
  EXPECT_EQ(*sequences.rbegin(), static_cast<int64_t>(lines.size())) << "no gap";
}

}  // namespace
}  // namespace weft::testing
