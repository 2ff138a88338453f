#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/env.h"
#include "tests/chaos/chaos.h"
#include "tests/chaos/coordinator_deaths.h"
#include "tests/chaos/failpoints.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class ChaosOfWorkers : public Chaos {};
class ChaosOfCheckpoints : public Chaos {};

TEST_F(ChaosOfWorkers, ARankIsKilled) {
  Cluster cluster({.ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("rank-killed", kSteps));
  cluster.AwaitStep(id, 12);
  std::vector<pid_t> ranks = cluster.RankPids(id);
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.back(), SIGKILL);
  ReportRecovery(cluster, id, 1, "kill -9 of a rank");
  v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts(0).reason(), v1::RANK_DIED);
}

TEST_F(ChaosOfWorkers, AWorkerIsKilledAndComesBack) {
  Cluster cluster({.cores = 1, .ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("worker-killed", kSteps));
  cluster.AwaitStep(id, 12);
  cluster.worker(1).Kill();
  EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id, 1).empty(); }, seconds(5)))
      << "ranks die with their daemon";
  cluster.StartWorker(1);
  ReportRecovery(cluster, id, 1, "kill -9 of a worker that is started again");
  ExpectUnharmed(cluster, id);
}

TEST_F(ChaosOfWorkers, AWorkerIsKilledForGood) {
  Cluster cluster({.ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("worker-gone", kSteps));
  cluster.AwaitStep(id, 12);
  int busy = cluster.RankPids(id, 0).empty() ? 1 : 0;
  cluster.worker(busy).Kill();
  ReportRecovery(cluster, id, 1, "kill -9 of a worker for good");
  ExpectUnharmed(cluster, id);
}

/// From the submission of a job to its training, in the order in which it passes each point; those
/// of the store are passed with each change, and those of reports again at its end.
const std::vector<std::string>& PointsOfAStart() {
  static const std::vector<std::string> kPoints = {"coordinator.submit.before_commit",
                                                   "coordinator.submit.after_commit",
                                                   "coordinator.plan.before",
                                                   "coordinator.dispatch.before_send",
                                                   "coordinator.dispatch.after_send",
                                                   "coordinator.rendezvous.before_reply",
                                                   "coordinator.rendezvous.after_reply",
                                                   "coordinator.store.before_commit",
                                                   "coordinator.store.after_commit",
                                                   "coordinator.attempt.report.before_commit",
                                                   "coordinator.attempt.report.after_commit"};
  return kPoints;
}

/// What workers and the coordinator tell each other, in an order in which a job on two workers
/// passes each point however far it has come: checkpoints while it trains, workers that register
/// whenever the coordinator is there again, and the reports of its end.
const std::vector<std::string>& WorkerPoints() {
  static const std::vector<std::string> kPoints = {
      "coordinator.checkpoint.before_commit", "coordinator.checkpoint.after_commit",
      "coordinator.register.before_send",     "coordinator.register.after_send",
      "coordinator.intent.before_remove",     "coordinator.intent.after_remove",
      "coordinator.attempt.report.after_ack"};
  return kPoints;
}

/// What a worker sends again until it is acknowledged.
const std::vector<std::string>& AcknowledgementPoints() {
  static const std::vector<std::string> kPoints = {
      "coordinator.logs.before_commit", "coordinator.logs.after_commit",
      "coordinator.logs.after_ack", "coordinator.heartbeat.before_ack",
      "coordinator.heartbeat.after_ack"};
  return kPoints;
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryPointOfTheStartOfAJob) {
  const std::vector<std::string>& points = PointsOfAStart();
  Cluster::Options options = Options(DiesAt(points[0]), kSlowSteps);
  options.cores = 1;  // a rank on each worker
  TrainThroughDeaths(points, options);
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMessageOfWorkersOfAJobThatTrains) {
  const std::vector<std::string>& points = WorkerPoints();
  Cluster::Options options =
      Options(DiesAt(points[0]), {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:80"}});
  options.cores = 1;  // a rank on each worker
  TrainThroughDeaths(points, options);
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryAcknowledgementOfAJobThatTrains) {
  const std::vector<std::string>& points = AcknowledgementPoints();
  TrainThroughDeaths(points, Options(DiesAt(points[0]), kSlowSteps));
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledAtEveryMoveOfAJobThatTrains) {
  const std::vector<std::string> points = MovesTo({"starting", "running", "succeeded"});
  TrainThroughDeaths(points, Options(DiesAt(points[0]), kSlowSteps));
}

TEST_F(ChaosOfTheCoordinator, EveryFailpointHasATest) {
  std::vector<std::string> tested =
      MovesTo({"starting", "running", "succeeded",
               // In moves_test.cc.
               "cancelling", "cancelled", "pausing", "paused", "queued", "recovering", "failed"});
  for (const auto& points : {PointsOfAStart(), WorkerPoints(), AcknowledgementPoints()}) {
    tested.insert(tested.end(), points.begin(), points.end());
  }
  // All that there are, in deletions_test.cc.
  const std::vector<std::string> deletions = FailpointsOf("coordinator.folder.");
  tested.insert(tested.end(), deletions.begin(), deletions.end());
  EXPECT_THAT(CoordinatorFailpoints(), ::testing::UnorderedElementsAreArray(tested));
}

TEST_F(ChaosOfTheCoordinator, TheCoordinatorIsKilledWhileTheJobTrains) {
  Cluster cluster({.ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("coordinator-away", kSteps));
  for (int64_t step : {3, 15}) {
    cluster.AwaitStep(id, step);
    std::vector<pid_t> before = cluster.RankPids(id);
    cluster.coordinator().Kill();
    auto begin = steady_clock::now();
    cluster.StartCoordinator();
    cluster.AwaitWorkers(2);
    std::printf("recovery after kill -9 of the coordinator in training: %.2f s\n",
                SecondsSince(begin));
    EXPECT_EQ(cluster.RankPids(id), before) << "ranks are adopted, not restarted";
  }
  v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1);
  std::set<int64_t> sequences;
  std::vector<v1::LogLine> lines = cluster.Logs(id);
  for (const v1::LogLine& line : lines) sequences.insert(line.sequence());
  EXPECT_EQ(sequences.size(), lines.size()) << "no line twice";
  EXPECT_EQ(*sequences.rbegin(), static_cast<int64_t>(lines.size())) << "no gap";
}

TEST_F(ChaosOfWorkers, AWorkerSleepsPastItsLease) {
  Cluster cluster({.ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("zombie", kSteps));
  cluster.AwaitStep(id, 8);
  int busy = cluster.RankPids(id, 0).empty() ? 1 : 0;
  std::vector<pid_t> ranks = cluster.RankPids(id);
  // The whole machine is stopped: the daemon and its ranks.
  cluster.worker(busy).Signal(SIGSTOP);
  for (pid_t pid : ranks) kill(pid, SIGSTOP);
  ReportRecovery(cluster, id, 1, "SIGSTOP of a worker past its lease");
  cluster.worker(busy).Signal(SIGCONT);
  for (pid_t pid : ranks) kill(pid, SIGCONT);
  EXPECT_TRUE(Eventually(
      [&] {
        for (pid_t pid : ranks) {
          if (kill(pid, 0) == 0) return false;
        }
        return true;
      },
      seconds(5)))
      << "the zombies are killed";
  ExpectFenced(cluster);
  ExpectUnharmed(cluster, id);
}

TEST_F(ChaosOfWorkers, ADaemonSleepsPastItsLeaseWhileItsRanksGoOn) {
  // Slow enough for the abandoned ranks to be alive, and writing checkpoints, when others take
  // over.
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:250"}}});
  // Both ranks on one worker, so that nothing but the fence stops them.
  cluster.worker(1).Signal(SIGTERM);
  ASSERT_TRUE(cluster.worker(1).WaitForEnd(seconds(10)));
  std::string id = cluster.Submit(cluster.TinyJob("fenced", kSteps));
  cluster.AwaitStep(id, 6);
  std::vector<pid_t> abandoned = cluster.RankPids(id, 0);
  ASSERT_EQ(abandoned.size(), 2u);
  cluster.StartWorker(1);
  cluster.AwaitWorkers(2);
  cluster.worker(0).Signal(SIGSTOP);
  auto begin = steady_clock::now();
  Eventually([&] { return cluster.Get(id).attempts_size() > 1; }, seconds(30));
  EXPECT_EQ(cluster.RankPids(id, 0).size(), 2u) << "the abandoned ranks still train";
  v1::Job job;
  Eventually(
      [&] {
        job = cluster.Get(id);
        return job.attempts_size() > 1 && job.state() == v1::RUNNING;
      },
      seconds(30));
  std::printf("recovery after SIGSTOP of a daemon whose ranks go on: %.2f s\n",
              SecondsSince(begin));
  EXPECT_EQ(job.attempts_size(), 2) << cluster.LogTails();
  EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id, 0).empty(); }, seconds(10)))
      << "their next checkpoint is refused, and they end";
  cluster.worker(0).Signal(SIGCONT);
  ExpectFenced(cluster);
  job = ExpectUnharmed(cluster, id);
  for (pid_t pid : abandoned) EXPECT_NE(kill(pid, 0), 0);
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
    if (checkpoint.step() > job.attempts(1).first_step()) {
      EXPECT_EQ(checkpoint.epoch(), 2) << "of step " << checkpoint.step();
    }
  }
}

TEST_F(ChaosOfCheckpoints, TheDiskIsFullWhileACheckpointIsWritten) {
  for (const char* point : {"checkpoint.before_write", "checkpoint.after_shards"}) {
    SCOPED_TRACE(point);
    Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", std::string(point) + "=full@2"}}});
    std::string id = cluster.Submit(cluster.TinyJob("full-disk", kSteps));
    ExpectUnharmed(cluster, id);
  }
}

/// A small file system of its own at `path` until the end of the scope.
class SmallDisk {
 public:
  SmallDisk(std::string path, int megabytes) : path_(std::move(path)) {
    std::string options = "size=" + std::to_string(megabytes) + "m";
    error_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, options.c_str()) == 0 ? 0 : errno;
  }
  ~SmallDisk() {
    if (error_ == 0) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  /// Why it could not be mounted, as errno; 0 when it was.
  int error() const { return error_; }

 private:
  std::string path_;
  int error_ = 0;
};

TEST_F(ChaosOfCheckpoints, TheDiskIsReallyFullForAWhile) {
  Cluster cluster({.ranks = kSlowSteps});
  SmallDisk disk(cluster.dir() + "/runs", 4);
  if (disk.error() != 0) {
    GTEST_SKIP() << "no tmpfs can be mounted here (needs root): " << strerror(disk.error());
  }
  std::string id = cluster.Submit(cluster.TinyJob("no-room", kSteps));
  cluster.AwaitStep(id, 12);
  std::string filler = cluster.dir() + "/runs/filler";
  {
    std::ofstream file(filler);
    std::string chunk(4096, 'x');
    while (file.write(chunk.data(), static_cast<std::streamsize>(chunk.size())).flush()) {
    }
  }
  EXPECT_TRUE(Eventually(
      [&] {
        std::vector<v1::LogLine> lines = cluster.Logs(id);
        return std::any_of(lines.begin(), lines.end(), [](const v1::LogLine& line) {
          return line.text().find("checkpoint of step") != std::string::npos &&
                 line.text().find("No space left on device") != std::string::npos;
        });
      },
      seconds(10)))
      << "people learn of it" << cluster.LogTails();
  std::filesystem::remove(filler);
  auto begin = steady_clock::now();
  EXPECT_TRUE(
      Eventually([&] { return cluster.Get(id).progress().checkpoint_step() >= 15; }, seconds(10)));
  std::printf("recovery after a full disk has room again: next checkpoint after %.2f s\n",
              SecondsSince(begin));
  v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1) << "it trained on meanwhile";
}

TEST_F(ChaosOfCheckpoints, RanksCrashAtEveryStageOfACheckpoint) {
  for (const std::string& point : FailpointsOf("checkpoint.")) {
    // Of ranks that save a part each: worker/trainer/peers_process_test.cc.
    if (point == "checkpoint.before_share") continue;
    SCOPED_TRACE(point);
    // Every attempt dies at the fourth checkpoint (or deletion) of its own, so that the job of
    // eight gets there, and after more than one death. Steps are slow enough for each checkpoint to
    // be done before the next; one that is due while another is written is left out.
    // A checkpoint has some 84 tensors.
    const std::string crash = point == "checkpoint.during_write" ? "=crash@300" : "=crash@4";
    Cluster cluster(
        {.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10," + point + crash}}});
    v1::JobSpec spec = cluster.TinyJob("torn-checkpoint", kSteps);
    spec.mutable_retry()->set_max_attempts(20);
    spec.mutable_checkpoint()->set_keep_last(1);
    auto begin = steady_clock::now();
    std::string id = cluster.Submit(spec);
    v1::Job job = ExpectUnharmed(cluster, id);
    EXPECT_GT(job.attempts_size(), 1);
    std::printf("crashes at %s: %d attempts, %.2f s in all\n", point.c_str(), job.attempts_size(),
                SecondsSince(begin));
  }
}

TEST_F(ChaosOfCheckpoints, AByteOfTheNewestCheckpointFlips) {
  Cluster cluster({.ranks = kSlowSteps});
  std::string id = cluster.Submit(cluster.TinyJob("flipped", kSteps));
  cluster.AwaitStep(id, 18);
  // Both ranks are stopped, then die, with a damaged checkpoint behind them.
  std::vector<pid_t> ranks = cluster.RankPids(id);
  for (pid_t pid : ranks) kill(pid, SIGSTOP);
  std::string folder = cluster.RunDir(id) + "/checkpoints";
  std::set<std::string> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::string name = entry.path().filename();
    if (name.rfind("step-", 0) == 0) steps.insert(entry.path());
  }
  ASSERT_GE(steps.size(), 2u);
  std::string largest;
  for (const auto& entry : std::filesystem::directory_iterator(*steps.rbegin())) {
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) {
      largest = entry.path();
    }
  }
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  auto middle = static_cast<std::streamoff>(std::filesystem::file_size(largest) / 2);
  file.seekg(middle);
  char byte = static_cast<char>(file.get());
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  for (pid_t pid : ranks) kill(pid, SIGKILL);
  ReportRecovery(cluster, id, 1, "kill -9 with a flipped byte in the newest checkpoint");
  const auto counted = [&] {
    double damaged = 0;
    for (int worker : {0, 1}) {
      damaged += MetricSum(cluster.WorkerMetrics(worker), "weft_train_damaged_checkpoints_total");
    }
    return damaged > 0;
  };
  EXPECT_TRUE(Eventually(counted, seconds(20))) << "what alerts are made of";
  ExpectUnharmed(cluster, id);
}

}  // namespace
}  // namespace weft::testing
