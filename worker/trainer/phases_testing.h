#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/rng.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/phases.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {

/// Notes what an attempt reports and asks it to stop after some steps.
class Listener : public Reporter {
 public:
  explicit Listener(int64_t steps) : steps_(steps) {}

  void Report(const RankMessage& message) override {
    if (auto* event = std::get_if<EventMessage>(&message)) events += event->text + "\n";
    if (std::holds_alternative<ProgressMessage>(message)) --steps_;
  }
  bool StopRequested() override { return steps_ <= 0; }

  std::string events;

 private:
  int64_t steps_;
};

/// A text of a few words: a few steps learn something from it.
inline std::string RepeatedWords() {
  PhiloxStream random(PhiloxKey{3, 0, 0});
  const char* const words[] = {"warp ", "weft ", "loom ", "shuttle ", "thread ", "cloth "};
  std::string text;
  for (int i = 0; i < 4000; ++i) text += words[random.Below(6)];
  return text;
}

using PlanChange = std::function<void(Plan&)>;

/// A way to spread a phase over ranks and memory.
struct Spread {
  const char* name;
  void (*set)(Plan&);
};

constexpr Spread kSpreads[] = {
    {"data", [](Plan& plan) { plan.mesh.data = 2; }},
    {"zero-1",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.zero_stage = 1;
     }},
    {"zero-3",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.zero_stage = 3;
     }},
    {"tensor", [](Plan& plan) { plan.mesh.tensor = 2; }},
    {"pipeline",
     // RunRanks says which blocks the stages have.
     [](Plan& plan) { plan.mesh.pipeline = 2; }},
    {"tensor-zero-1",
     [](Plan& plan) {
       plan.mesh.data = plan.mesh.tensor = 2;
       plan.zero_stage = 1;
     }},
    {"recomputed",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.block_memory_policy = {"recompute", "attention"};
     }},
    {"offloaded",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.zero_stage = 2;
       plan.offload_optimizer = plan.offload_parameters = plan.offload_activations = "host";
     }},
};

class PhasesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_phases_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), root_ + "/text.txt", RepeatedWords()).ok());
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  static PhaseSpec Phase(int64_t steps, const std::string& method = "none") {
    PhaseSpec phase;
    phase.steps = steps;
    phase.growth.method = method;
    return phase;
  }

  JobSpec Job(std::vector<PhaseSpec> phases) const {
    JobSpec job = engine::TinyJob(4);
    job.model.vocab_size = 0;
    job.data.train = {root_ + "/text.txt"};
    job.data.tokenizer.vocab_size = 264;
    job.optimizer.learning_rate = 3e-3;
    job.schedule.kind = "constant";
    job.train.precision = "fp32";
    job.train.eval_every_steps = 0;
    job.train.eval_sequences = 8;
    job.checkpoint.every_steps = 4;
    job.phases = std::move(phases);
    return job;
  }

  JobSpec VCycle() const {
    JobSpec job = Job({Phase(6), Phase(10, "coalesce"), Phase(8, "decoalesce")});
    job.phases[1].layers = 1;
    job.phases[1].width = 16;
    return job;
  }

  /// The same of another family: a llama whose heads share keys and values, and images for a vit.
  JobSpec VCycleOf(const std::string& family) const {
    JobSpec job = VCycle();
    job.model.family = family;
    if (family == "llama") {
      job.model.heads = 4;
      job.model.kv_heads = 2;
      job.model.mlp_width = 96;
    }
    if (family != "vit") return job;
    job.model.image_size = 12;
    job.model.patch_size = 3;
    job.model.image_channels = 1;
    job.data = {};
    job.data.train = {std::string(WEFT_SOURCE_DIR) + "/docs/examples/shapes-images-idx3-ubyte.gz"};
    job.data.validation_fraction = 0.2;
    return job;
  }

  /// Grows in all sizes, with masks for five of nine steps.
  JobSpec Masked() const {
    JobSpec job = Job({Phase(6), Phase(9, "msg")});
    job.phases[0].layers = 1;
    job.phases[0].width = 16;
    job.phases[0].heads = 1;
    job.phases[0].mlp_width = 40;
    job.phases[1].growth.ramp_steps = 5;
    job.phases[1].growth.new_blocks = "random";
    return job;
  }

  /// Runs `job` for at most `steps` steps, or goes on.
  Result<AttemptOutcome> Run(const std::string& name, const JobSpec& job, int64_t steps = 1000) {
    auto outcome = Start(name, job, steps);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome;
  }
  /// The same where it may fail.
  Result<AttemptOutcome> Start(const std::string& name, const JobSpec& job, int64_t steps = 1000) {
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.run_dir = Folder(name);
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    std::vector<Plan> plans;
    for (size_t i = 0; i < PhaseCount(job); ++i) {
      const TrainSpec train = JobOfPhase(job, i).train;
      const int64_t unit = BatchSchedule(train).unit();
      plans.push_back(engine::TinyPlan("fp32", unit, train.global_batch / unit));
    }
    Listener listener(steps);
    engine::HashStore store;
    auto outcome = RunPhases(
        Env::Posix(), whole, plans, [](size_t) {}, listener, store);
    events_ = listener.events;
    return outcome;
  }

  /// Runs the last phase of `job`, whose phases before are those of run `from`, as run `to` on two
  /// ranks, with a plan that `change` makes of that of one.
  void RunLastOnTwoRanks(const std::string& from, const JobSpec& job, const std::string& to,
                         const PlanChange& change) {
    AttemptSpec whole;
    whole.job_id = to;
    whole.epoch = 1;
    whole.host = "127.0.0.1";
    whole.run_dir = Folder(from);
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    engine::HashStore store;
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec attempt = AttemptOfPhase(whole, PhaseCount(job) - 1);
        attempt.run_dir = Folder(to);
        attempt.rank = rank;
        attempt.world_size = 2;
        attempt.plan = engine::TinyPlan("fp32");
        change(attempt.plan);
        Listener listener(1000);
        const auto outcome = RunAttempt(Env::Posix(), attempt, listener, store);
        EXPECT_TRUE(outcome.ok()) << outcome.status().message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  /// One phase on ranks that are threads.
  static void RunRanks(const AttemptSpec& whole, size_t phase, const Spread& spread) {
    AttemptSpec one = whole;
    one.plan = engine::TinyPlan("fp32", 2);
    spread.set(one.plan);
    if (const int64_t stages = one.plan.mesh.pipeline; stages > 1) {
      const int64_t blocks = JobOfPhase(whole.job, phase).model.layers;
      one.plan.stage_blocks.assign(static_cast<size_t>(stages), blocks / stages);
    }
    one.plan.accumulation_steps = whole.job.train.global_batch / (2 * one.plan.mesh.data);
    one.world_size = RankCount(one.plan.mesh);
    engine::HashStore store;
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < one.world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec attempt = one;
        attempt.rank = rank;
        Listener listener(1000);
        const auto outcome = RunPhase(Env::Posix(), attempt, phase, listener, store);
        EXPECT_TRUE(outcome.ok()) << "rank " << rank << ": " << outcome.status().message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  /// Runs a job as run `name`, its last phase spread over ranks in one way and those before it in
  /// another, and compares it with run `one` of one rank.
  void CompareSpread(const JobSpec& job, const std::string& one, const std::string& name,
                     const Spread& first, const Spread& last) const {
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.host = "127.0.0.1";
    whole.run_dir = Folder(name);
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    const size_t count = PhaseCount(job);
    for (size_t i = 0; i < count; ++i) RunRanks(whole, i, i + 1 < count ? first : last);
    const RunSummary shared = Summary(name), expected = Summary(one);
    EXPECT_NEAR(*shared.start_validation_loss_nats, *expected.start_validation_loss_nats, 1e-4);
    EXPECT_NEAR(*shared.validation_loss_nats, *expected.validation_loss_nats, 1e-3);
    ASSERT_EQ(shared.phases.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(shared.phases[i].steps, job.phases[i].steps);
    EXPECT_EQ(Manifest(name).updates, Manifest(one).updates) << "of the optimizer's state";
  }
  /// Runs the last of two phases on two ranks, with a plan that `change` makes of that of one, and
  /// compares it with one rank.
  void CompareWithTwoRanks(const JobSpec& job, const PlanChange& change) {
    ASSERT_TRUE(Run("one", job).ok());
    RunLastOnTwoRanks("one", job, "shared", change);
    const RunSummary shared = Summary("shared"), one = Summary("one");
    EXPECT_EQ(Manifest("shared").updates, Manifest("one").updates);
    EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-5);
    EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
    EXPECT_TRUE(Env::Posix().RemoveTree(Folder("shared")).ok());
  }

  std::string Folder(const std::string& run) const { return root_ + "/" + run; }
  std::string Read(const std::string& path) const {
    const auto text = ReadFile(Env::Posix(), root_ + "/" + path);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
  }
  /// The lines of the loss curve of a run, or of a phase.
  std::vector<Json> Curve(const std::string& run) const {
    std::vector<Json> lines;
    std::istringstream text(Read(run + "/loss.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(*ParseJson(line));
    return lines;
  }
  RunSummary Summary(const std::string& run) const {
    return *FromJson<RunSummary>(*ParseJson(Read(run + "/summary.json")));
  }
  engine::CheckpointManifest Manifest(const std::string& run) const {
    const auto search = engine::LatestVerified(Env::Posix(), Folder(run));
    EXPECT_TRUE(search.ok() && search->latest);
    return search->latest->manifest;
  }
  std::string FinalState(const std::string& run) const {
    return Read(engine::CheckpointPath(run, Manifest(run).step) +
                "/state-00000-of-00001.safetensors");
  }

  /// A parameter of the newest checkpoint of a run, or of a phase.
  std::vector<float> Parameter(const std::string& run, const std::string& name,
                               const Shape& shape) const {
    const engine::CheckpointManifest manifest = Manifest(run);
    std::vector<float> values(static_cast<size_t>(shape.Elements()));
    const Status loaded = engine::LoadTensors(
        Env::Posix(), engine::CheckpointPath(Folder(run), manifest.step), manifest,
        {{name, {values.data(), DType::kF32, shape}}}, engine::ExtraTensors::kIgnore);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    return values;
  }

  /// Between the halves of the rows of the first weight of an MLP: the largest difference.
  double DistanceOfCopies(const std::string& run) const {
    const ModelSpec model = Manifest(run).job.model;
    const std::vector<float> weight =
        Parameter(run, "transformer.h.0.mlp.c_fc.weight", {MlpWidth(model), model.width});
    double distance = 0;
    for (size_t i = 0; i < weight.size() / 2; ++i) {
      distance = std::max(distance,
                          std::abs(static_cast<double>(weight[i]) - weight[i + weight.size() / 2]));
    }
    return distance;
  }

  std::string root_;
  std::string events_;
};

}  // namespace weft::trainer
