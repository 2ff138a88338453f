// Ranks that die or hang, and what the service makes of it in which time.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ChaosOfRanks : public Chaos {};

TEST_F(ChaosOfRanks, OneOfFourIsKilled) {
  std::string undisturbed;
  {
    Cluster cluster({});
    const std::string id = cluster.Submit(cluster.TinyJob("four", kSteps, 4));
    cluster.Await(id, v1::SUCCEEDED);
    undisturbed = cluster.LossCurve(id);
  }
  Cluster cluster({.ranks = kSlowSteps});
  const std::string id = cluster.Submit(cluster.TinyJob("one-of-four", kSteps, 4));
  cluster.AwaitStep(id, 12);
  const std::vector<pid_t> ranks = cluster.RankPids(id);
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks[2], SIGKILL);
  ReportRecovery(cluster, id, 1, "kill -9 of one rank of four");
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(90));
  EXPECT_EQ(cluster.LossCurve(id), undisturbed);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).reason(), v1::RANK_DIED);
  // A checkpoint comes every five steps.
  EXPECT_LE(job.attempts(0).last_step() - job.attempts(1).first_step(), 5);
}

/// The second of two ranks is stopped: the first waits for it in a collective.
class ChaosOfRanksThatHang : public ChaosOfRanks {
 protected:
  static void IsAborted(const Environment& coordinator) {
    Cluster cluster({.coordinator = coordinator, .ranks = kSlowSteps});
    const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
    cluster.AwaitStep(id, 12);
    AbortFollows(cluster, id, seconds(30));
  }

  /// Stops the second of the job's ranks, and waits up to `limit` for the end of its attempt.
  static void AbortFollows(Cluster& cluster, const std::string& id, seconds limit) {
    const std::vector<pid_t> ranks = cluster.RankPids(id);
    ASSERT_EQ(ranks.size(), 2u);
    const auto begin = steady_clock::now();
    kill(ranks.back(), SIGSTOP);
    ASSERT_TRUE(Eventually(
        [&] {
          const v1::Job job = cluster.Get(id);
          return job.attempts_size() > 0 && job.attempts(0).reason() == v1::HUNG;
        },
        limit))
        << cluster.LogTails();
    Report("abort_seconds", "hung ranks are aborted after", SecondsSince(begin));
    const v1::Job job = ExpectUnharmed(cluster, id);
    EXPECT_THAT(job.attempts(0).message(),
                AllOf(HasSubstr("rank 0 "), HasSubstr("rank 1 "), HasSubstr(" stopped")))
        << "what each rank did is reported";
  }
};

TEST_F(ChaosOfRanksThatHang, IsAbortedByTheLimitThatFollowsFromTheSteps) {
  IsAborted({});
}

TEST_F(ChaosOfRanksThatHang, IsAbortedByALimitOfFiveSeconds) {
  IsAborted({{"WEFT_COORDINATOR_HANG_SECONDS", "5"}});
}

// WEFT_TEST_HANG_SECONDS: the setting, for run.py.
TEST_F(ChaosOfRanksThatHang, BeforeTheirFirstStepAreAbortedByALongerLimit) {
  const char* asked = std::getenv("WEFT_TEST_HANG_SECONDS");
  Cluster cluster({.coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", asked ? asked : "2"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:3000@1"}}});
  const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
  ASSERT_TRUE(Eventually([&] { return cluster.RankPids(id).size() == 2; }, seconds(30)));
  AbortFollows(cluster, id, seconds(100));
}

/// Steps of the checkpoints in the folder that are verified.
std::vector<std::string> Verified(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with("step-") &&
        fs::exists(entry->path() / "verified", error)) {
      found.push_back(entry->path());
    }
  }
  return found;
}

TEST_F(ChaosOfRanks, VerifyCheckpointsSlowlyWhileOneIsKept) {
  // Each checkpoint is written and then waits to be verified, while the next ones come due.
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS",
                              "trainer.before_step=sleep:20,checkpoint.before_verify=sleep:150"}}});
  v1::JobSpec spec = cluster.TinyJob("kept", kSteps);
  spec.mutable_checkpoint()->set_keep_last(1);
  spec.mutable_checkpoint()->set_every_steps(2);
  const std::string id = cluster.Submit(spec);
  const std::string folder = cluster.RunDir(id) + "/checkpoints";
  ASSERT_TRUE(Eventually([&] { return !Verified(folder).empty(); }, seconds(30)));
  int64_t looks = 0;
  while (cluster.Get(id).state() != v1::SUCCEEDED && !HasFailure()) {
    // One that goes while the folder is read has another one that came before.
    EXPECT_TRUE(!Verified(folder).empty() || !Verified(folder).empty()) << "nothing to go back to";
    ++looks;
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_GT(looks, 20);
  EXPECT_EQ(cluster.Await(id, v1::SUCCEEDED).attempts_size(), 1);
}

}  // namespace
}  // namespace weft::testing
