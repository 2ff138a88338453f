// Ranks that hang, ranks that do not stop, and failures that a user has to mend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "common/clock.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<v1::JobEvent> Events(Cluster& cluster, const std::string& id) {
  grpc::ClientContext context;
  v1::ListEventsRequest request;
  request.set_job_id(id);
  v1::ListEventsResponse response;
  EXPECT_TRUE(cluster.api().ListEvents(&context, request, &response).ok());
  return {response.events().begin(), response.events().end()};
}

std::string TextOf(Cluster& cluster, const std::string& id, const std::string& kind) {
  std::string text;
  for (const v1::JobEvent& event : Events(cluster, id)) {
    if (event.kind() == kind) text += event.text() + "\n";
  }
  return text;
}

void Cancel(Cluster& cluster, const std::string& id) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest request;
  request.set_id(id);
  v1::Job job;
  ASSERT_TRUE(cluster.api().CancelJob(&context, request, &job).ok());
}

TEST(Hangs, OfARankEndTheAttemptAndTheJobGoesOn) {
  Cluster cluster({.coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "4"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}}});
  v1::JobSpec spec = cluster.TinyJob("hung", 200);
  spec.mutable_checkpoint()->set_every_steps(100);  // a rank that saves hangs in another way
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 12);
  const pid_t hung = cluster.RankPids(id).back();
  kill(hung, SIGSTOP);
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 2) << cluster.LogTails();
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "HUNG");
  EXPECT_THAT(job.attempts(0).message(),
              AllOf(HasSubstr("no step was made for "), HasSubstr("stopped")));
  EXPECT_THAT(TextOf(cluster, id, "hung"), HasSubstr("no step was made for "));
  EXPECT_THAT(TextOf(cluster, id, "retry"), HasSubstr("attempt 2 of 10 starts in "));
}

TEST(Hangs, OfAStartEndTheAttempt) {
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "0.5"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_join=sleep:1000000@1"}}});
  v1::JobSpec spec = cluster.TinyJob("never-starts", 20, 1);
  spec.mutable_retry()->set_max_attempts(1);
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "HUNG");
  EXPECT_THAT(job.message(), HasSubstr("no sign of life while starting"));
}

TEST(Hangs, OfARankThatSpinsInItsStartEndTheAttempt) {
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "0.5"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_join=spin:1000000@1"},
                             {"WEFT_WORKER_SPIN_SECONDS", "3"}}});
  v1::JobSpec spec = cluster.TinyJob("spins", 20, 1);
  spec.mutable_retry()->set_max_attempts(1);
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "HUNG");
  EXPECT_THAT(job.message(),
              AllOf(HasSubstr("no sign of life while starting"), HasSubstr("rank 0 running")));
}

TEST(Hangs, AreNotSeenInSlowSteps) {
  // Each step sleeps for twice the limit of quick steps.
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "0.4"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:800"}}});
  v1::JobSpec spec = cluster.TinyJob("slow", 6, 1);
  spec.mutable_checkpoint()->set_every_steps(2);
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::SUCCEEDED);
  EXPECT_EQ(job.attempts_size(), 1) << job.attempts(0).message();
}

TEST(Hangs, OfARankThatSpinsInItsFirstStepEndTheAttempt) {
  // As one does that waits for a peer with a busy processor.
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "2"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=spin:1000000@1"}}});
  v1::JobSpec spec = cluster.TinyJob("spins-in-a-step", 20, 1);
  spec.mutable_retry()->set_max_attempts(1);
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "HUNG");
  EXPECT_THAT(job.message(),
              AllOf(HasSubstr("no sign of life in the first step"), HasSubstr("rank 0 running")));
}

TEST(Hangs, AreNotSeenInASlowSaveThatWrites) {
  // The save at the end writes its 84 tensors one by one, with a pause before each. In all it takes
  // longer than any silence may last.
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_HANG_SECONDS", "4"}},
                   .ranks = {{"WEFT_FAILPOINTS", "checkpoint.during_write=sleep:300"}}});
  v1::JobSpec spec = cluster.TinyJob("slow-save", 5, 1);
  spec.mutable_model()->set_width(128);
  spec.mutable_checkpoint()->set_every_steps(1000);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 5);
  const auto begin = steady_clock::now();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  EXPECT_GT(SecondsSince(begin), 5 * 4.0) << "the save was not slow";
  EXPECT_EQ(job.attempts_size(), 1) << job.attempts(0).message();
}

TEST(Cancel, KillsRanksThatDoNotStop) {
  Cluster cluster({.workers = 1,
                   .coordinator = {{"WEFT_COORDINATOR_STOP_SECONDS", "0.5"}},
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}}});
  const std::string id = cluster.Submit(cluster.TinyJob("stubborn", 100000, 1));
  cluster.AwaitStep(id, 5);
  kill(cluster.RankPids(id).at(0), SIGSTOP);
  Cancel(cluster, id);
  const v1::Job job = cluster.Await(id, v1::CANCELLED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "CANCELLED_BY_USER");
  EXPECT_THAT(TextOf(cluster, id, "kill"), HasSubstr("ranks did not stop within "));
}

TEST(Retries, OfWhatPassesWaitLongerEachTime) {
  Cluster cluster({.workers = 1, .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=error"}}});
  v1::JobSpec spec = cluster.TinyJob("fails", 20, 1);
  spec.mutable_retry()->set_max_attempts(3);
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "RETRIES_EXHAUSTED");
  ASSERT_EQ(job.attempts_size(), 3);
  const auto pause = [&](int i) {
    return job.attempts(i).started_at() - job.attempts(i - 1).ended_at();
  };
  EXPECT_GE(pause(1), 0.5) << "half a second to a second";
  EXPECT_GE(pause(2), 1.0) << "one to two";
  EXPECT_THAT(TextOf(cluster, job.id(), "retry"), AllOf(HasSubstr("attempt 2 of 3 starts in "),
                                                        HasSubstr("attempt 3 of 3 starts in ")));
}

/// A job that a worker gets only once `before` has been done to its run folder.
v1::Job RunAfter(Cluster& cluster, const std::function<void(const std::string&)>& before) {
  cluster.worker(0).Signal(SIGTERM);
  EXPECT_TRUE(cluster.worker(0).WaitForEnd(seconds(20)));
  const std::string id = cluster.Submit(cluster.TinyJob("unwritable", 20, 1));
  before(cluster.RunDir(id));
  cluster.StartWorker(0);
  return cluster.Await(id, v1::FAILED);
}

TEST(Retries, AreNotMadeOfARunFolderThatCannotBeWritten) {
  Cluster cluster({.workers = 1});
  for (const std::string blocked : {"", "/checkpoints"}) {
    const v1::Job job = RunAfter(cluster, [&](const std::string& folder) {
      // Not even root can make a folder where a file is.
      if (!blocked.empty()) std::filesystem::create_directories(folder);
      std::ofstream(folder + blocked) << "in the way";
    });
    EXPECT_EQ(v1::Reason_Name(job.reason()), "USER_ERROR") << job.message();
    EXPECT_EQ(job.attempts_size(), 1);
    EXPECT_THAT(job.message(), AllOf(HasSubstr("the run folder cannot be written"),
                                     HasSubstr(cluster.RunDir(job.id())), HasSubstr("hint:")));
  }
}

TEST(Retries, AreNotMadeOfDataThatIsNotThere) {
  Cluster cluster({.workers = 1});
  v1::JobSpec spec = cluster.TinyJob("no-data", 20, 1);
  spec.mutable_data()->set_train(0, cluster.dir() + "/gone.txt");
  const v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "USER_ERROR") << job.message();
  EXPECT_EQ(job.attempts_size(), 1);
}

}  // namespace
}  // namespace weft::testing
