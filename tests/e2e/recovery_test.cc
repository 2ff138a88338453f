// What a failure costs, and who is to blame: ledgers, stragglers, bad machines, spares.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "common/clock.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

double Total(const v1::Ledger& ledger) {
  return ledger.queued_seconds() + ledger.starting_seconds() + ledger.useful_seconds() +
         ledger.rework_seconds() + ledger.checkpoint_seconds() + ledger.recovery_seconds() +
         ledger.data_wait_seconds() + ledger.straggler_seconds();
}

Environment SlowSteps(int milliseconds) {
  return {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:" + std::to_string(milliseconds)}};
}

std::vector<v1::JobEvent> Events(Cluster& cluster, const std::string& id, const char* kind) {
  grpc::ClientContext context;
  v1::ListEventsRequest request;
  request.set_job_id(id);
  v1::ListEventsResponse response;
  EXPECT_TRUE(cluster.api().ListEvents(&context, request, &response).ok());
  std::vector<v1::JobEvent> found;
  for (const v1::JobEvent& event : response.events()) {
    if (event.kind() == kind) found.push_back(event);
  }
  return found;
}

std::optional<v1::Worker> WorkerNamed(Cluster& cluster, const std::string& id) {
  grpc::ClientContext context;
  v1::ListWorkersRequest request;
  v1::ListWorkersResponse response;
  EXPECT_TRUE(cluster.api().ListWorkers(&context, request, &response).ok());
  for (const v1::Worker& worker : response.workers()) {
    if (worker.profile().worker_id() == id) return worker;
  }
  return std::nullopt;
}

/// Seconds until the job trains in this attempt or a later one.
double SecondsToTraining(Cluster& cluster, const std::string& id, int attempt) {
  const auto begin = steady_clock::now();
  EXPECT_TRUE(Eventually(
      [&] {
        const v1::Job job = cluster.Get(id);
        return job.attempts_size() >= attempt && job.state() == v1::RUNNING;
      },
      seconds(60)))
      << cluster.LogTails();
  return SecondsSince(begin);
}

std::set<std::string> WorkersOf(const v1::Attempt& attempt) {
  const auto& workers = attempt.plan().rank_workers();
  return {workers.begin(), workers.end()};
}

TEST(Recovery, TheLedgerSumsToTheWallTimeThroughFailures) {
  Cluster cluster({.workers = 1, .ranks = SlowSteps(50)});
  v1::JobSpec spec = cluster.TinyJob("ledger", 60);
  spec.mutable_checkpoint()->set_every_steps(10);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 16);
  kill(cluster.RankPids(id).front(), SIGKILL);
  const double back = SecondsToTraining(cluster, id, 2);
  RecordProperty("seconds_to_training_after_a_killed_rank", std::to_string(back));
  EXPECT_LT(back, 10.0 * kPatience) << "10 s on a quiet machine";
  cluster.AwaitStep(id, 25);
  const v1::Ledger before = cluster.Get(id).ledger();
  cluster.coordinator().Kill();
  cluster.StartCoordinator();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(job.attempts_size(), 2) << "the coordinator adopts what runs";
  const v1::Ledger& ledger = job.ledger();
  const double error = std::abs(Total(ledger) - (job.ended_at() - job.submitted_at()));
  RecordProperty("ledger_error_seconds", std::to_string(error));
  EXPECT_LT(error, 1.0);
  const double gone = job.attempts(1).started_at() - job.attempts(0).ended_at();
  EXPECT_NEAR(ledger.queued_seconds(), job.attempts(0).started_at() - job.submitted_at() + gone,
              0.1);
  EXPECT_GT(ledger.useful_seconds(), 60 * 0.05) << "60 steps of more than 50 ms are kept";
  // Maybe less than before: the second coordinator begins with the times that were stored last, and
  // steps between two sightings count as equally long.
  EXPECT_GT(ledger.rework_seconds(), 6 * 0.05 / 2) << "steps 11 to 16 and more were made again";
  EXPECT_GT(ledger.starting_seconds(), 0);
  EXPECT_GT(ledger.checkpoint_seconds(), 0);
  EXPECT_GT(ledger.recovery_seconds(), 0);
  EXPECT_GE(ledger.useful_seconds(), before.useful_seconds()) << "nothing is forgotten";
  EXPECT_GE(ledger.recovery_seconds(), before.recovery_seconds() - 1e-6);
  CheckMetrics(cluster.CoordinatorMetrics());
}

TEST(Recovery, TheUsefulTimeOfTheLedgerIsThatOfTheStepsWithoutWaitsForData) {
  constexpr int64_t kSteps = 60;
  constexpr double kWaitSeconds = 0.06;
  Cluster cluster({.workers = 1,
                   .ranks = {{"WEFT_FAILPOINTS",
                              "trainer.before_step=sleep:40,trainer.wait_for_data=sleep:60"}}});
  v1::JobSpec spec = cluster.TinyJob("starved", kSteps);
  spec.mutable_checkpoint()->set_every_steps(1000);
  const std::string id = cluster.Submit(spec);
  // What the steps themselves say, those of them that are seen.
  std::map<int64_t, double> step_seconds;
  v1::Job job = cluster.Get(id);
  while (job.state() != v1::SUCCEEDED && job.state() != v1::FAILED &&
         !::testing::Test::HasFailure()) {
    if (job.progress().step() > 1) {
      step_seconds[job.progress().step()] = job.progress().step_seconds();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    job = cluster.Get(id);
  }
  ASSERT_EQ(job.state(), v1::SUCCEEDED) << job.message();
  ASSERT_GE(step_seconds.size(), 5u);
  double mean = 0;
  for (const auto& [step, took] : step_seconds) {
    mean += took / static_cast<double>(step_seconds.size());
  }
  const v1::Ledger& ledger = job.ledger();
  // A sleep takes at least what is asked for.
  EXPECT_GE(ledger.data_wait_seconds(), kSteps * kWaitSeconds);
  EXPECT_LT(ledger.data_wait_seconds(), kSteps * kWaitSeconds * 1.5);
  const double useful = kSteps * (mean - kWaitSeconds);
  const double wall = job.ended_at() - job.submitted_at();
  EXPECT_NEAR(ledger.useful_seconds(), useful, 0.15 * wall);
  const double others = Total(ledger) - ledger.useful_seconds();
  EXPECT_NEAR(others + useful, wall, 0.15 * wall);
  RecordProperty("useful_error_seconds",
                 std::to_string(std::abs(ledger.useful_seconds() - useful)));
}

TEST(Recovery, ASlowRankIsNamedWithItsMachine) {
  // 1.3 times as slow, whatever else the machine does: nearly all of a step is sleep.
  // WEFT_TEST_STRAGGLER_SECONDS: how long it is watched, for tests/chaos/run.py.
  const char* asked = std::getenv("WEFT_TEST_STRAGGLER_SECONDS");
  Cluster cluster({.workers = 2,
                   .coordinator = {{"WEFT_COORDINATOR_STRAGGLER_SECONDS", asked ? asked : "5"}},
                   .ranks = SlowSteps(400)});
  cluster.worker(1).Signal(SIGTERM);
  ASSERT_TRUE(cluster.worker(1).WaitForEnd(seconds(20)));
  cluster.StartWorker(1, SlowSteps(520));
  cluster.AwaitWorkers(2);
  const std::string id = cluster.Submit(cluster.TinyJob("slow", 2000, 4));
  cluster.AwaitStep(id, 1);
  const auto begin = steady_clock::now();
  ASSERT_TRUE(Eventually([&] { return !Events(cluster, id, "straggler").empty(); }, seconds(120)))
      << cluster.LogTails();
  const double took = SecondsSince(begin);
  RecordProperty("seconds_to_name_a_straggler", std::to_string(took));
  EXPECT_LT(took, 120);
  EXPECT_THAT(Events(cluster, id, "straggler")[0].text(), HasSubstr(" on worker worker-1 takes "));
  EXPECT_THAT(cluster.Get(id).message(), HasSubstr(" on worker worker-1 takes "));
  EXPECT_GT(WorkerNamed(cluster, "worker-1")->suspicion(), 0);
  EXPECT_EQ(WorkerNamed(cluster, "worker-0")->suspicion(), 0);
  EXPECT_THAT(cluster.CoordinatorMetrics(), HasSubstr("weft_coord_straggler_ratio{"));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest cancel;
  v1::Job cancelled;
  cancel.set_id(id);
  ASSERT_TRUE(cluster.api().CancelJob(&context, cancel, &cancelled).ok());
  cluster.Await(id, v1::CANCELLED);
}

TEST(Recovery, AMachineThatComputesWronglyGetsNoRanks) {
  Cluster cluster({.workers = 2});
  cluster.worker(0).Signal(SIGTERM);
  ASSERT_TRUE(cluster.worker(0).WaitForEnd(seconds(20)));
  cluster.StartWorker(0, {{"WEFT_FAILPOINTS", "worker.check.product=error"}});
  ASSERT_TRUE(Eventually(
      [&] {
        const auto worker = WorkerNamed(cluster, "worker-0");
        return worker && worker->scheduling() == v1::QUARANTINED;
      },
      seconds(30)))
      << cluster.LogTails();
  EXPECT_THAT(WorkerNamed(cluster, "worker-0")->scheduling_why(),
              AllOf(HasSubstr("its check failed: "), HasSubstr("multiplied wrongly")));
  const std::string id = cluster.Submit(cluster.TinyJob("elsewhere", 10));
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 1) << "none was used up";
  EXPECT_EQ(WorkersOf(job.attempts(0)), std::set<std::string>{"worker-1"});
  EXPECT_GE(MetricSum(cluster.CoordinatorMetrics(),
                      "weft_coord_machine_checks_total{outcome=\"passed\"}"),
            1);
}

TEST(Recovery, AJobGoesOnOnASpareWithTheSameBits) {
  Cluster cluster({.workers = 3,
                   .coordinator = {{"WEFT_COORDINATOR_SPARE_WORKERS", "1"}},
                   .ranks = SlowSteps(50)});
  const v1::JobSpec spec = cluster.TinyJob("spare", 60, 4);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 12);
  const v1::Job running = cluster.Get(id);
  const std::set<std::string> used = WorkersOf(running.attempts(0));
  EXPECT_EQ(used, (std::set<std::string>{"worker-0", "worker-1"})) << "the last one is the spare";
  cluster.worker(1).Kill();
  const double back = SecondsToTraining(cluster, id, 2);
  RecordProperty("seconds_to_training_on_a_spare", std::to_string(back));
  EXPECT_LT(back, 30.0 * kPatience) << "30 s on a quiet machine";
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  EXPECT_EQ(WorkersOf(job.attempts(1)), (std::set<std::string>{"worker-0", "worker-2"}));
  EXPECT_EQ(job.attempts(1).plan().rank_workers_size(), 4) << "the same mesh";
  EXPECT_NEAR(Total(job.ledger()), job.ended_at() - job.submitted_at(), 1.0);
  cluster.StartWorker(1);
  cluster.AwaitWorkers(3);
  v1::JobSpec undisturbed = spec;
  undisturbed.set_name("undisturbed");
  const std::string reference = cluster.Submit(undisturbed);
  cluster.Await(reference, v1::SUCCEEDED, seconds(120));
  EXPECT_EQ(cluster.LossCurve(id), cluster.LossCurve(reference));
}

TEST(Recovery, AMachineThatIsGoneTakesNoStepWithItThatAnotherOneHasInMemory) {
  const std::string memory = ::testing::TempDir() + "memory";
  for (int worker : {0, 1, 2}) {
    std::filesystem::create_directories(memory + "/" + std::to_string(worker));
  }
  const auto own = [&](int worker) {
    return Environment{{"WEFT_WORKER_SNAPSHOT_DIR", memory + "/" + std::to_string(worker)}};
  };
  Cluster cluster({.workers = 3,
                   .coordinator = {{"WEFT_COORDINATOR_SPARE_WORKERS", "1"}},
                   .ranks = SlowSteps(50)});
  for (int worker : {0, 1, 2}) {
    cluster.worker(worker).Signal(SIGTERM);
    ASSERT_TRUE(cluster.worker(worker).WaitForEnd(seconds(20)));
    cluster.StartWorker(worker, own(worker));
  }
  cluster.AwaitWorkers(3);
  v1::JobSpec spec = cluster.TinyJob("memory", 60, 4);
  spec.mutable_checkpoint()->set_every_steps(0);
  spec.mutable_checkpoint()->set_peer_every_steps(1);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 12);
  // Rank 0, which alone saves, is there.
  cluster.worker(0).Kill();
  std::filesystem::remove_all(memory + "/0");
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(job.attempts_size(), 2);
  const int64_t reached = job.attempts(0).last_step();
  EXPECT_GE(job.attempts(1).first_step(), reached) << "no step that was reported was made again";
  // What was under way; all steps made again would be more than their share of the useful time.
  EXPECT_LT(job.ledger().rework_seconds(),
            static_cast<double>(reached) * job.ledger().useful_seconds() / 60);
  spec.set_name("undisturbed");
  spec.mutable_checkpoint()->set_peer_every_steps(0);
  std::filesystem::create_directories(memory + "/0");
  cluster.StartWorker(0, own(0));
  cluster.AwaitWorkers(3);
  const std::string reference = cluster.Submit(spec);
  cluster.Await(reference, v1::SUCCEEDED, seconds(120));
  EXPECT_EQ(cluster.LossCurve(id), cluster.LossCurve(reference));
  std::filesystem::remove_all(memory);
}

TEST(Recovery, AJobThatLosesAMachineForGoodGoesOnOnTheRest) {
  Cluster cluster({.workers = 2, .ranks = SlowSteps(50)});
  const std::string id = cluster.Submit(cluster.OpenJob("shrinks", 60));
  cluster.AwaitStep(id, 10);
  cluster.worker(1).Kill();
  const double back = SecondsToTraining(cluster, id, 2);
  RecordProperty("seconds_to_training_on_what_is_left", std::to_string(back));
  EXPECT_LT(back, 10.0 * kPatience) << "10 s on a quiet machine, 2 of them the lease";
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 4);
  EXPECT_EQ(job.attempts(1).plan().rank_workers_size(), 2);
  EXPECT_EQ(cluster.Losses(id).size(), 60u);
}

TEST(Recovery, AJobThatIsReplannedOnFewerRanksKeepsItsBits) {
  Cluster cluster({.workers = 2, .ranks = SlowSteps(30)});
  v1::JobSpec spec = cluster.OpenJob("same-bits", 16);
  spec.mutable_train()->set_deterministic("mesh");
  spec.mutable_train()->set_logical_micro_batch(2);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 6);
  cluster.worker(1).Kill();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_GT(job.attempts(0).plan().rank_workers_size(), job.attempts(1).plan().rank_workers_size());
  EXPECT_GT(job.attempts(1).first_step(), 1) << "from a checkpoint of the larger mesh";
  spec.set_name("alone");
  spec.mutable_resources()->set_ranks(1);
  const std::string alone = cluster.Submit(spec);
  cluster.Await(alone, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(cluster.Losses(id).size(), 16u);
  EXPECT_EQ(cluster.LossCurve(id), cluster.LossCurve(alone));
}

}  // namespace
}  // namespace weft::testing
