// Ranks that die or hang, and what the service makes of it in which time.
#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

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

/// One of two ranks is stopped, in whatever they do; the other one waits for it, or is done.
class ChaosOfRanksThatHang : public ChaosOfRanks {
 protected:
  static void IsAborted(const Environment& coordinator) {
    Cluster cluster({.coordinator = coordinator, .ranks = kSlowSteps});
    const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
    cluster.AwaitStep(id, 12);
    const std::string message = AbortFollows(cluster, id, 1);
    EXPECT_THAT(message, AllOf(HasSubstr("no step was made"), HasSubstr("rank 0 ")));
  }

  /// Stops that rank of the job. What is said of the end of its attempt, which has to come within
  /// half a minute.
  static std::string AbortFollows(Cluster& cluster, const std::string& id, size_t rank) {
    const std::vector<pid_t> ranks = cluster.RankPids(id);
    EXPECT_GT(ranks.size(), rank) << cluster.LogTails();
    if (HasFailure()) return "";
    kill(ranks[rank], SIGSTOP);
    const std::string message = AbortFollows(cluster, id);
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(rank) + " stopped"));
    return message;
  }

  /// The same of an attempt that hangs from now on.
  static std::string AbortFollows(Cluster& cluster, const std::string& id) {
    const auto begin = steady_clock::now();
    EXPECT_TRUE(Eventually(
        [&] {
          const v1::Job job = cluster.Get(id);
          return job.attempts_size() > 0 && job.attempts(0).reason() == v1::HUNG;
        },
        seconds(60)))
        << cluster.LogTails();
    Report("abort_seconds", "hung ranks are aborted after", SecondsSince(begin));
    EXPECT_LT(SecondsSince(begin), 30.0 * kPatience) << "30 s on a quiet machine";
    return ExpectUnharmed(cluster, id).attempts(0).message();
  }

  /// The fault leaves the ranks so long in what they do, for one to be stopped there.
  static Environment PauseAt(const std::string& failpoint) {
    return {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:40," + failpoint + "=sleep:3000@1"}};
  }
};

TEST_F(ChaosOfRanksThatHang, IsAbortedByTheLimitThatFollowsFromTheSteps) {
  IsAborted({});
}

TEST_F(ChaosOfRanksThatHang, IsAbortedByALimitOfFiveSeconds) {
  IsAborted({{"WEFT_COORDINATOR_HANG_SECONDS", "5"}});
}

TEST_F(ChaosOfRanksThatHang, WhileAllSleepAreNamedByTheCollectiveThatOthersWaitIn) {
  Cluster cluster({.cores = 1, .ranks = kSlowSteps});
  cluster.worker(1).Kill();
  // Not in a second attempt, which makes fewer steps.
  cluster.StartWorker(1, {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:120000@25"}});
  cluster.AwaitWorkers(2);
  const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
  cluster.AwaitStep(id, 24);
  const std::string message = AbortFollows(cluster, id);
  EXPECT_THAT(message, AllOf(HasSubstr("rank 0 sleeping in barrier"),
                             HasSubstr(" on worker worker-1 seems to be what the others wait for: "
                                       "it is sleeping")));
}

TEST_F(ChaosOfRanksThatHang, InTheirFirstStepAreAbortedByWhatThePlanPredicts) {
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:3000@1"}}});
  const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
  // Rank 0 opens it last before the first step.
  ASSERT_TRUE(
      Eventually([&] { return fs::exists(cluster.RunDir(id) + "/loss.jsonl"); }, seconds(30)));
  std::this_thread::sleep_for(milliseconds(500));
  const std::string message = AbortFollows(cluster, id, 1);
  EXPECT_THAT(message, AllOf(HasSubstr("no sign of life in the first step"), HasSubstr("rank 0 "),
                             HasSubstr("seems to be what the others wait for")));
}

TEST_F(ChaosOfRanksThatHang, InAnEvaluationAreAbortedByItsSequences) {
  Cluster cluster({.ranks = PauseAt("trainer.before_evaluation")});
  const std::string id = cluster.Submit(cluster.TinyJob("hung", kSteps));
  cluster.AwaitStep(id, 20);
  std::this_thread::sleep_for(milliseconds(500));
  const std::string message = AbortFollows(cluster, id, 1);
  EXPECT_THAT(message, AllOf(HasSubstr("no sign of life while evaluating"), HasSubstr("rank 0 "),
                             HasSubstr("seems to be what the others wait for")));
}

TEST_F(ChaosOfRanksThatHang, InASaveAreAbortedByItsBytes) {
  Cluster cluster({.ranks = PauseAt("checkpoint.before_write")});
  v1::JobSpec spec = cluster.TinyJob("hung", kSteps);
  spec.mutable_checkpoint()->set_every_steps(1000);  // the one at the end holds up the training
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, kSteps);
  std::this_thread::sleep_for(milliseconds(500));
  // Rank 0 alone saves; the other one is done then.
  EXPECT_THAT(AbortFollows(cluster, id, 0), HasSubstr("no sign of life while saving"));
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
