// Jobs with phases through coordinator and workers: each phase is an attempt by a plan of its own,
// and whatever dies meanwhile changes no number.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/json.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::IsSupersetOf;

/// Steps of the phases of VCycle, and of all.
constexpr int64_t kSteps[] = {8, 12, 10};
constexpr int64_t kAllSteps = 30;

/// Slows a step down, so that there is time to strike.
const Environment kSlowSteps{{"WEFT_FAILPOINTS", "trainer.before_step=sleep:60"}};

v1::PhaseSpec& AddPhase(v1::JobSpec& spec, int64_t steps, const std::string& method = "none") {
  v1::PhaseSpec& phase = *spec.add_phases();
  phase.set_steps(steps);
  phase.mutable_growth()->set_method(method);
  return phase;
}

/// A few steps of the model, then of one of half the width and one block, then of a mixture.
v1::JobSpec VCycle(const Cluster& cluster, const std::string& name) {
  v1::JobSpec spec = cluster.TinyJob(name);
  spec.mutable_schedule()->set_kind("constant");
  spec.mutable_schedule()->set_warmup_steps(2);
  AddPhase(spec, kSteps[0]);
  v1::PhaseSpec& small = AddPhase(spec, kSteps[1], "coalesce");
  small.set_name("small");
  small.set_layers(1);
  small.set_width(16);
  AddPhase(spec, kSteps[2], "decoalesce");
  return spec;
}

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The loss curves of all phases, byte for byte.
std::string Curves(const Cluster& cluster, const std::string& id) {
  std::string curves;
  for (const char* folder : {"/phase-1", "/phase-2", ""}) {
    curves += Read(cluster.RunDir(id) + folder + "/loss.jsonl") + "\n";
  }
  return curves;
}

/// The same of the job when nothing happens, made once.
const std::string& UndisturbedCurves() {
  static const std::string kCurves = [] {
    Cluster cluster({});
    const std::string id = cluster.Submit(VCycle(cluster, "undisturbed"));
    cluster.Await(id, v1::SUCCEEDED);
    return Curves(cluster, id);
  }();
  return kCurves;
}

/// The job ended well, with each phase once.
v1::Job ExpectEachPhaseOnce(Cluster& cluster, const std::string& id) {
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(90));
  EXPECT_EQ(job.progress().step(), kAllSteps);
  EXPECT_EQ(job.progress().steps_total(), kAllSteps);
  int completed = 0;
  for (const v1::Attempt& attempt : job.attempts()) completed += attempt.reason() == v1::COMPLETED;
  EXPECT_EQ(completed, 3);
  return job;
}

/// The same, as if nothing had happened.
v1::Job ExpectUnharmed(Cluster& cluster, const std::string& id) {
  const v1::Job job = ExpectEachPhaseOnce(cluster, id);
  EXPECT_EQ(Curves(cluster, id), UndisturbedCurves());
  return job;
}

TEST(Phases, AVCycleIsOneJobWithAnAttemptForEachPhase) {
  Cluster cluster({});
  const std::string id = cluster.Submit(VCycle(cluster, "cycle"));
  const v1::Job job = ExpectEachPhaseOnce(cluster, id);
  ASSERT_EQ(job.attempts_size(), 3);
  for (const v1::Attempt& attempt : job.attempts()) {
    EXPECT_EQ(attempt.plan().rank_workers_size(), 2);
  }
  EXPECT_GT(job.attempts(0).plan().prediction().model_flops_per_step(),
            job.attempts(1).plan().prediction().model_flops_per_step());

  // The ledger: steps, tokens and FLOPs of each phase.
  const Json summary = *ParseJson(job.summary_json());
  ASSERT_EQ(summary.at("phases").size(), 3u);
  int64_t tokens = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Json& phase = summary.at("phases").at(i);
    EXPECT_EQ(phase.at("steps"), kSteps[i]);
    EXPECT_GT(phase.at("training_flops"), 0);
    EXPECT_EQ(phase.contains("start_validation_loss_nats"), i > 0);
    tokens += phase.at("tokens").get<int64_t>();
  }
  EXPECT_EQ(summary.at("phases").at(1).at("phase"), "phase 2 of 3 (small)");
  EXPECT_EQ(job.progress().tokens(), tokens);
  EXPECT_EQ(*ParseJson(Read(cluster.RunDir(id) + "/summary.json")), summary);

  // Metrics and checkpoints count the steps of the whole job.
  double steps = 0;
  for (const int worker : {0, 1}) {
    steps +=
        MetricValue(cluster.WorkerMetrics(worker), "weft_train_steps_total{run=\"" + id + "\"}")
            .value_or(0);
  }
  EXPECT_EQ(steps, kAllSteps);
  std::vector<int64_t> saved;
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
    saved.push_back(checkpoint.step());
    EXPECT_TRUE(std::filesystem::exists(checkpoint.path())) << checkpoint.path();
  }
  // Those at the end of phases; of the others one may be left out on a busy machine, where the one
  // before is still being written.
  EXPECT_THAT(saved, IsSupersetOf({30, 20, 8}));
  EXPECT_THAT(saved, IsSubsetOf({30, 25, 20, 18, 13, 8, 5}));
}

TEST(Phases, ASizeThatWasChosenStaysWhenARankDies) {
  const auto run = [](const Environment& environment, int64_t ranks, int attempts) {
    Cluster cluster({.ranks = environment});
    v1::JobSpec spec = cluster.TinyJob("chooses");
    spec.mutable_schedule()->set_kind("constant");
    spec.mutable_schedule()->set_warmup_steps(0);
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_checkpoint()->set_every_steps(3);
    v1::PhaseSpec& searched = AddPhase(spec, 12);
    searched.set_layers(3);
    searched.mutable_search()->set_steps(6);
    for (const int64_t layers : {1, 2, 3}) searched.mutable_search()->add_layers(layers);
    spec.mutable_model()->set_layers(4);
    AddPhase(spec, 6, "stack");
    const std::string id = cluster.Submit(spec);
    EXPECT_EQ(cluster.Await(id, v1::SUCCEEDED, seconds(90)).attempts_size(), attempts);
    const std::string folder = cluster.RunDir(id);
    const Json search = *ParseJson(Read(folder + "/phase-1/search/search.json"));
    std::string curves = search.at("candidates").dump();
    for (const char* part : {"/phase-1/search", "/phase-1", ""}) {
      curves += Read(folder + part + "/loss.jsonl") + "\n";
    }
    return curves;
  };
  // Two steps after the choice.
  const Environment dies{{"WEFT_FAILPOINTS", "trainer.before_step=crash@9"}};
  for (const int64_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(run(dies, ranks, 3), run({}, ranks, 2));
  }
}

TEST(Phases, EachPhaseHasAMeshOfItsOwn) {
  Cluster cluster({});
  v1::JobSpec spec = cluster.OpenJob("meshes", 12);
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_resources()->set_micro_batch(1);
  v1::PhaseSpec& narrow = AddPhase(spec, 6);
  narrow.set_width(64);
  narrow.set_global_batch(1);  // leaves nothing to share
  narrow.set_sequence_length(16);
  AddPhase(spec, 6, "fpi");
  const std::string id = cluster.Submit(spec);
  ASSERT_NE(id, "");
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(90));
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 1);
  EXPECT_GT(job.attempts(1).plan().mesh().data(), 1);
  const Json phases = ParseJson(job.summary_json())->at("phases");
  // The function is the same on the other mesh.
  EXPECT_NEAR(phases.at(1).at("start_validation_loss_nats").get<double>(),
              phases.at(0).at("validation_loss_nats").get<double>(), 0.2);
}

TEST(Phases, AWorkerIsKilledInTheSecondPhase) {
  Cluster cluster({.cores = 1, .ranks = kSlowSteps});
  const std::string id = cluster.Submit(VCycle(cluster, "worker-killed"));
  cluster.AwaitStep(id, kSteps[0] + 7);
  cluster.worker(1).Kill();
  cluster.StartWorker(1);
  const v1::Job job = ExpectUnharmed(cluster, id);
  ASSERT_EQ(job.attempts_size(), 4);
  // The first that a heartbeat named.
  EXPECT_GT(job.attempts(1).first_step(), kSteps[0]);
  EXPECT_LE(job.attempts(1).first_step(), job.attempts(1).last_step());
  EXPECT_NE(job.attempts(1).reason(), v1::COMPLETED);
  EXPECT_GE(job.attempts(2).first_step(), kSteps[0] + 5) << "goes on in its phase";
}

TEST(Phases, TheCoordinatorIsKilledWhereAPhaseEnds) {
  // The first attempt reports three times: started, training, finished; the last report ends it.
  for (const char* point :
       {"coordinator.attempt.report.before_commit=crash@3",
        "coordinator.attempt.report.after_commit=crash@3",
        "coordinator.dispatch.before_send=crash@2", "coordinator.dispatch.after_send=crash@2"}) {
    SCOPED_TRACE(point);
    Cluster cluster({.workers = 1, .coordinator = {{"WEFT_FAILPOINTS", point}}});
    const std::string id = cluster.Submit(VCycle(cluster, "coordinator-killed"));
    ASSERT_TRUE(cluster.coordinator().WaitForEnd(seconds(30))) << "did not crash";
    cluster.StartCoordinator();
    const v1::Job job = ExpectUnharmed(cluster, id);
    EXPECT_EQ(job.attempts_size(), 3) << "nothing was run again";
  }
}

TEST(Phases, ACancelledJobGoesOnInItsPhase) {
  Cluster cluster({.ranks = kSlowSteps});
  const std::string id = cluster.Submit(VCycle(cluster, "cancelled"));
  cluster.AwaitStep(id, kSteps[0] + 3);
  grpc::ClientContext cancel, retry;
  cancel.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest cancel_request;
  cancel_request.set_id(id);
  v1::Job job;
  ASSERT_TRUE(cluster.api().CancelJob(&cancel, cancel_request, &job).ok());
  cluster.Await(id, v1::CANCELLED);
  retry.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::RetryJobRequest retry_request;
  retry_request.set_id(id);
  ASSERT_TRUE(cluster.api().RetryJob(&retry, retry_request, &job).ok());
  EXPECT_EQ(ExpectUnharmed(cluster, id).attempts_size(), 4);
}

}  // namespace
}  // namespace weft::testing
