#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include "common/clock.h"
#include "common/env.h"
#include "common/version.h"
#include "tests/framework/cluster.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(Jobs, SucceedOnTwoWorkersAndTellEverything) {
  Cluster cluster({.cores = 1});  // so that two ranks need both
  auto submitted = std::chrono::steady_clock::now();
  std::string id = cluster.Submit(cluster.TinyJob("story"));
  cluster.AwaitStep(id, 1);
  double first_step = SecondsSince(submitted);
  std::printf("submit to first reported optimizer step: %.2f s\n", first_step);
  EXPECT_LT(first_step, 20) << "far above the goal of one second, for busy machines";
  std::vector<v1::LogLine> followed = cluster.Logs(id, /*follow=*/true);
  v1::Job job = cluster.Await(id, v1::SUCCEEDED);

  ASSERT_EQ(job.attempts_size(), 1);
  const auto& placed = job.attempts(0).plan().rank_workers();
  EXPECT_EQ(std::set<std::string>(placed.begin(), placed.end()).size(), 2u);
  EXPECT_EQ(job.progress().step(), 40);
  EXPECT_TRUE(job.progress().has_validation_loss());
  EXPECT_THAT(job.summary_json(), HasSubstr("\"steps\":40"));

  std::vector<double> losses = cluster.Losses(id);
  ASSERT_EQ(losses.size(), 40u);
  EXPECT_NEAR(losses.front(), std::log(320), 0.5) << "a fresh model knows nothing";
  EXPECT_LT(losses.back(), 0.8 * losses.front());

  std::vector<v1::Checkpoint> checkpoints = cluster.Checkpoints(id);
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints.front().step(), 40);
  EXPECT_TRUE(checkpoints.front().verified());

  std::vector<v1::LogLine> stored = cluster.Logs(id);
  ASSERT_FALSE(stored.empty());
  EXPECT_EQ(followed.size(), stored.size()) << "a follower misses nothing";
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_EQ(stored[i].sequence(), static_cast<int64_t>(i) + 1);
  }

  std::string coordinator = cluster.CoordinatorMetrics();
  CheckMetrics(coordinator);
  double accounted = 0;
  for (int i = 0; i < 2; ++i) {
    std::string metrics = cluster.WorkerMetrics(i);
    CheckMetrics(metrics);
    EXPECT_EQ(MetricValue(metrics, "weft_worker_attached"), 1);
    if (!MetricValue(metrics, "weft_train_steps_total{run=\"" + id + "\"}")) continue;
    EXPECT_EQ(MetricValue(metrics, "weft_train_steps_total{run=\"" + id + "\"}"), 40);
    for (const char* time_class : {"startup", "recovery", "useful", "rework", "stall"}) {
      accounted += MetricValue(metrics, "weft_train_accounted_seconds_total{class=\"" +
                                            std::string(time_class) + "\",run=\"" + id + "\"}")
                       .value_or(0);
    }
  }
  double wall = job.attempts(0).ended_at() - job.attempts(0).started_at();
  EXPECT_NEAR(accounted, wall, 1.0) << "the ledger sums to the attempt's wall time";
}

TEST(Jobs, HaveTheSameLossCurveOnOneTwoAndFourRanks) {
  Cluster cluster({.workers = 2, .cores = 2});
  std::vector<double> reference;
  for (int64_t ranks : {1, 2, 4}) {
    v1::JobSpec spec = cluster.TinyJob("ranks-" + std::to_string(ranks), 20, ranks);
    std::string id = cluster.Submit(spec);
    cluster.Await(id, v1::SUCCEEDED);
    std::vector<double> losses = cluster.Losses(id);
    ASSERT_EQ(losses.size(), 20u) << ranks;
    if (reference.empty()) reference = losses;
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], reference[i], 1e-5) << ranks << " ranks, step " << i + 1;
    }
  }
}

TEST(Jobs, GoOnWithFewerRanksWhenAWorkerIsLostForGood) {
  constexpr int64_t kSteps = 16;
  struct {
    const char* name;
    std::function<void(v1::ResourceSpec&)> mesh;
    int replica;  // ranks that there are at least
  } const cases[] = {{"shards-of-matrices",
                      [](v1::ResourceSpec& resources) {
                        resources.set_tensor_parallel(2);
                        resources.set_zero_stage(1);
                      },
                      2},
                     {"shared-parameters",
                      [](v1::ResourceSpec& resources) {
                        resources.set_zero_stage(3);
                        resources.set_zero_shard_ranks(2);
                      },
                      1},
                     {"shares-on-the-host",
                      [](v1::ResourceSpec& resources) {
                        resources.set_offload_optimizer("host");
                        resources.set_zero_stage(2);
                      },
                      1}};
  std::vector<double> expected;  // the same for all: clusters have the same data
  for (const auto& [name, mesh, replica] : cases) {
    SCOPED_TRACE(name);
    Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:20"}}});
    v1::JobSpec spec = cluster.OpenJob(name, kSteps);
    mesh(*spec.mutable_resources());
    const std::string id = cluster.Submit(spec);
    cluster.AwaitStep(id, 6);
    cluster.worker(1).Kill();
    const v1::Job job = cluster.Await(id, v1::SUCCEEDED);
    ASSERT_EQ(job.attempts_size(), 2);
    EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 4);
    const int ranks_after = job.attempts(1).plan().rank_workers_size();
    EXPECT_LT(ranks_after, 4);
    EXPECT_EQ(ranks_after % replica, 0) << ranks_after;
    EXPECT_GT(job.attempts(1).first_step(), 0) << "from a checkpoint";
    // The same sequences in the same steps, whoever computes them: as one rank alone does it.
    if (expected.empty()) {
      v1::JobSpec alone = cluster.OpenJob("alone", kSteps);
      alone.mutable_resources()->set_ranks(1);
      const std::string reference = cluster.Submit(alone);
      cluster.Await(reference, v1::SUCCEEDED);
      expected = cluster.Losses(reference);
    }
    const std::vector<double> losses = cluster.Losses(id);
    ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(expected.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-4) << "step " << i + 1;
    }
  }
}

TEST(Jobs, WithAdaptersGoOnWithFewerRanksWhenAWorkerIsLostForGood) {
  constexpr int64_t kSteps = 16;
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:20"}}});
  v1::JobSpec spec = cluster.OpenJob("adapters", kSteps);
  v1::PeftSpec& peft = *spec.mutable_model()->mutable_peft();
  peft.set_method("lora");
  peft.add_target_modules("all-linear");
  peft.add_modules_to_save("ln_f");
  v1::JobSpec alone = spec;
  spec.mutable_resources()->set_zero_stage(2);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 6);
  cluster.worker(1).Kill();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 4);
  EXPECT_LT(job.attempts(1).plan().rank_workers_size(), 4);
  EXPECT_GT(job.attempts(1).first_step(), 0) << "from a checkpoint";
  alone.set_name("adapters-alone");
  alone.mutable_resources()->set_ranks(1);
  const std::string reference = cluster.Submit(alone);
  cluster.Await(reference, v1::SUCCEEDED);
  const std::vector<double> losses = cluster.Losses(id), expected = cluster.Losses(reference);
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(expected.size(), losses.size());
  EXPECT_LT(expected.back(), expected.front() - 0.005) << "adapters learn";
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-4) << "step " << i + 1;
  }
}

TEST(Jobs, WithLocalStepsGoOnFromTheOuterStepWhenAWorkerIsLostForGood) {
  constexpr int64_t kSteps = 24;
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:20"}}});
  v1::JobSpec spec = cluster.OpenJob("local-steps", kSteps);
  spec.mutable_train()->set_local_steps(3);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 12);
  cluster.worker(1).Kill();
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 2);
  for (const std::string& worker : job.attempts(1).plan().rank_workers()) {
    EXPECT_EQ(worker, "worker-0");
  }
  EXPECT_GT(job.attempts(1).first_step(), 1) << "from a checkpoint";
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
    EXPECT_EQ(checkpoint.step() % 3, 0) << "step " << checkpoint.step() << " is no outer step";
  }
  const std::vector<double> losses = cluster.Losses(id);
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(losses.back(), losses.front());
}

TEST(Jobs, WaitForEachOtherAndAreCancelled) {
  Cluster cluster(
      {.workers = 1, .cores = 2, .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:20"}}});
  std::string first = cluster.Submit(cluster.TinyJob("first", 2000));
  cluster.AwaitStep(first, 1);
  std::string second = cluster.Submit(cluster.TinyJob("second", 10));
  bool explained = Eventually(
      [&] { return cluster.Get(second).reason() == v1::WAITING_FOR_CAPACITY; }, seconds(10));
  EXPECT_TRUE(explained) << v1::Reason_Name(cluster.Get(second).reason());
  EXPECT_EQ(cluster.Get(second).state(), v1::QUEUED);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest cancel;
  cancel.set_id(first);
  v1::Job answer;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  ASSERT_TRUE(cluster.api().CancelJob(&context, cancel, &answer).ok());
  v1::Job cancelled = cluster.Await(first, v1::CANCELLED);
  EXPECT_EQ(cancelled.reason(), v1::CANCELLED_BY_USER);
  EXPECT_TRUE(cluster.RankPids(first).empty());
  cluster.Await(second, v1::SUCCEEDED);
}

TEST(Jobs, AreRefusedOrFailAtOnceWhenTheyAreWrong) {
  Cluster cluster({.workers = 1});
  v1::SubmitJobResponse response;
  v1::JobSpec spec = cluster.TinyJob("Bad Name");
  EXPECT_EQ(cluster.TrySubmit(spec, "r1", &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  spec = cluster.TinyJob("no-data");
  spec.mutable_data()->clear_train();
  EXPECT_EQ(cluster.TrySubmit(spec, "r2", &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  spec = cluster.TinyJob("huge");
  spec.mutable_model()->set_width(-5);
  grpc::Status status = cluster.TrySubmit(spec, "r3", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("model.width"));

  spec = cluster.TinyJob("missing-file");
  spec.mutable_data()->set_train(0, cluster.dir() + "/nowhere.txt");
  v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::USER_ERROR) << job.message();
  EXPECT_THAT(job.message(), HasSubstr("nowhere.txt"));
  EXPECT_EQ(job.attempts_size(), 1) << "a retry cannot help";

  std::ofstream(cluster.dir() + "/tokenizer.json") << "{\"model\": {\"type\": \"WordPiece\"}}";
  spec = cluster.TinyJob("wrong-tokenizer");
  spec.mutable_data()->mutable_tokenizer()->set_path(cluster.dir() + "/tokenizer.json");
  job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::USER_ERROR) << job.message();
}

TEST(Workers, OfAnotherVersionAreTurnedAway) {
  Cluster cluster({.workers = 1});
  auto stub = v1::WorkerService::NewStub(
      grpc::CreateChannel(cluster.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  auto stream = stub->Attach(&context);
  v1::WorkerMessage hello;
  hello.mutable_register_()->set_worker_id("old");
  hello.mutable_register_()->set_incarnation("1");
  hello.mutable_register_()->set_version("0.0.1");
  hello.mutable_register_()->set_api_level(kApiLevel + 1);
  hello.mutable_register_()->mutable_profile()->set_cores(1);
  hello.mutable_register_()->mutable_profile()->set_device("cpu");
  ASSERT_TRUE(stream->Write(hello));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_THAT(answer.registered().refused(), HasSubstr("0.0.1"));
}

/// A coordinator of another version.
class RefusingCoordinator : public v1::WorkerService::Service {
 public:
  grpc::Status Attach(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream) override {
    v1::WorkerMessage hello;
    if (!stream->Read(&hello)) return grpc::Status::OK;
    v1::CoordinatorMessage answer;
    answer.mutable_registered()->set_refused("this coordinator is of release 9, the worker of " +
                                             hello.register_().version());
    stream->Write(answer);
    return grpc::Status::OK;
  }
};

TEST(Workers, ThatAreRefusedEndWithThatExitCode) {
  RefusingCoordinator service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  Cluster cluster({.workers = 1});
  auto expect_refused = [&](const std::string& coordinator, const std::string& worker_id,
                            const std::string& words) {
    const std::string log = cluster.dir() + "/" + worker_id + "-refused.log";
    Process worker = Process::Start(
        {std::string(WEFT_BINARY_DIR) + "/weft-worker", "--data-dir", cluster.dir() + "/refused",
         "--coordinator", coordinator, "--worker-id", worker_id, "--metrics-listen", ""},
        {}, log);
    auto status = worker.WaitForEnd(seconds(20));
    ASSERT_TRUE(status && WIFEXITED(*status));
    EXPECT_EQ(WEXITSTATUS(*status), 4);
    EXPECT_THAT(*ReadFile(Env::Posix(), log), HasSubstr(words));
  };
  expect_refused("127.0.0.1:" + std::to_string(port), "elsewhere", std::string("of ") + kVersion);
  expect_refused(cluster.address(), "worker-0", "worker-0");
  server->Shutdown();
}

TEST(Workers, RefuseASecondDaemonOnTheirFolder) {
  Cluster cluster({.workers = 1});
  Process second = Process::Start({std::string(WEFT_BINARY_DIR) + "/weft-worker", "--data-dir",
                                   cluster.dir() + "/worker-0", "--coordinator", cluster.address()},
                                  {}, cluster.dir() + "/second.log");
  auto status = second.WaitForEnd(seconds(10));
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 6);
  Process probe = Process::Start({std::string(WEFT_BINARY_DIR) + "/weft-worker", "--healthcheck",
                                  "--data-dir", cluster.dir() + "/worker-0"},
                                 {}, cluster.dir() + "/health.log");
  status = probe.WaitForEnd(seconds(10));
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 0);
}

TEST(Workers, DrainSoThatTheJobGoesOnElsewhere) {
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}}});
  std::string id = cluster.Submit(cluster.TinyJob("moved", 60));
  cluster.AwaitStep(id, 7);
  int busy = cluster.RankPids(id, 0).empty() ? 1 : 0;
  cluster.worker(busy).Signal(SIGTERM);
  auto status = cluster.worker(busy).WaitForEnd(seconds(20));
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  v1::Job job = cluster.Await(id, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_THAT(job.attempts(1).plan().rank_workers(0), HasSubstr(std::to_string(1 - busy)));
  EXPECT_GT(job.attempts(1).first_step(), 7) << "the drained ranks saved where they stopped";
}

}  // namespace
}  // namespace weft::testing
