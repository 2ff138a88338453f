// The coordinator is away for a while: training goes on, and whoever follows the log misses
// nothing.
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

class ChaosOfOutages : public Chaos {};

int64_t LinesOf(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST_F(ChaosOfOutages, OfLessThanALeaseAreNotNoticedByTheRanks) {
  // Slow enough to be still at it when the coordinator is back.
  Cluster cluster(
      {.lease_seconds = 8, .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:250"}}});
  const std::string id = cluster.Submit(cluster.TinyJob("short-outage", kSteps));
  cluster.AwaitStep(id, 3);
  const std::vector<pid_t> before = cluster.RankPids(id);
  cluster.coordinator().Kill();
  const int64_t steps = LinesOf(cluster.LossCurve(id));
  std::this_thread::sleep_for(seconds(4));
  EXPECT_GT(LinesOf(cluster.LossCurve(id)), steps + 5) << "training goes on";
  cluster.StartCoordinator();
  cluster.AwaitWorkers(2);
  EXPECT_EQ(cluster.RankPids(id), before) << "adopted, not started again";
  const v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1);
}

TEST_F(ChaosOfOutages, OfMoreThanALeaseEndTheRanksAtItsEnd) {
  constexpr double kLease = 3;
  Cluster cluster(
      {.lease_seconds = kLease, .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:400"}}});
  const std::string id = cluster.Submit(cluster.TinyJob("long-outage", kSteps));
  cluster.AwaitStep(id, 6);
  cluster.coordinator().Kill();
  const auto begin = steady_clock::now();
  const size_t ranks = cluster.RankPids(id).size();
  EXPECT_EQ(ranks, 2u);
  double trained = 0;
  EXPECT_TRUE(Eventually(
      [&] {
        if (cluster.RankPids(id).size() == ranks) trained = SecondsSince(begin);
        return cluster.RankPids(id).empty();
      },
      seconds(10)))
      << "nobody trains without a lease";
  Report("trained_seconds", "without a coordinator ranks trained for", trained);
  EXPECT_GT(trained, kLease / 2);
  EXPECT_LT(trained, kLease + 1);
  cluster.StartCoordinator();
  const v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 2);
}

TEST_F(ChaosOfOutages, HideNothingOfAJobThatEndsMeanwhile) {
  Cluster cluster({.lease_seconds = 30, .ranks = kSlowSteps});
  const std::string id = cluster.Submit(cluster.TinyJob("unseen-end", kSteps));
  const v1::Job seen = cluster.AwaitStep(id, kSteps / 2);
  cluster.coordinator().Kill();
  ASSERT_TRUE(Eventually([&] { return cluster.RankPids(id).empty(); }, seconds(30)));
  EXPECT_EQ(LinesOf(cluster.LossCurve(id)), kSteps);
  cluster.StartCoordinator();
  const v1::Job job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.attempts(0).last_step(), kSteps);
  EXPECT_EQ(job.progress().loss(), cluster.Losses(id).back());
  EXPECT_EQ(job.progress().tokens() % kSteps, 0) << "the same of every step";
  EXPECT_EQ(job.progress().tokens() / kSteps, seen.progress().tokens() / seen.progress().step());
  EXPECT_EQ(job.progress().checkpoint_step(), kSteps);
  EXPECT_GE(job.ledger().useful_seconds(), kSteps / 2 * 0.04) << "the part that nobody saw";
}

TEST_F(ChaosOfOutages, LeaveAFollowedLogWhole) {
  Cluster cluster({.ranks = kSlowSteps});
  const std::string id = cluster.Submit(cluster.TinyJob("followed", kSteps));
  cluster.AwaitStep(id, 2);
  const std::string path = cluster.dir() + "/followed.txt";
  Process follower = Process::Start({std::string(WEFT_BINARY_DIR) + "/weft", "--server",
                                     cluster.address(), "job", "logs", "--follow", id},
                                    {}, path);
  for (const int64_t step : {8, 16, 24}) {
    cluster.AwaitStep(id, step);
    cluster.coordinator().Kill();
    std::this_thread::sleep_for(milliseconds(200));
    cluster.StartCoordinator();
    cluster.AwaitWorkers(2);
  }
  ExpectUnharmed(cluster, id);
  const auto status = follower.WaitForEnd(seconds(20));
  EXPECT_TRUE(status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  std::ifstream file(path);
  std::vector<std::string> shown;
  for (std::string line; std::getline(file, line);) shown.push_back(line);
  const std::vector<v1::LogLine> stored = cluster.Logs(id);
  EXPECT_EQ(shown.size(), stored.size()) << "no gap, no line twice";
  for (size_t i = 0; i < std::min(shown.size(), stored.size()); ++i) {
    EXPECT_TRUE(shown[i].ends_with(stored[i].text())) << i << ": " << shown[i];
  }
}

}  // namespace
}  // namespace weft::testing
