#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/rng.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/phases.h"
#include "common/spec/planned_job.h"
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
    {"zero-2",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.zero_stage = 2;
     }},
    {"zero-3",
     [](Plan& plan) {
       plan.mesh.data = 2;
       plan.zero_stage = 3;
     }},
    {"tensor", [](Plan& plan) { plan.mesh.tensor = 2; }},
    {"pipeline",
     // PlanOn says which blocks the stages have.
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

constexpr Spread kOneRank = {"one rank", [](Plan&) {}};

/// The spread of this name, which is one of kSpreads.
inline const Spread& SpreadOf(std::string_view name) {
  return *std::find_if(std::begin(kSpreads), std::end(kSpreads),
                       [&](const Spread& spread) { return spread.name == name; });
}

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

  /// A plan for `job`, that of a phase, on the ranks of a spread.
  static Plan PlanOn(const Spread& spread, const JobSpec& job) {
    Plan plan = engine::TinyPlan("fp32", 2);
    spread.set(plan);
    if (const int64_t stages = plan.mesh.pipeline; stages > 1) {
      plan.stage_blocks.assign(static_cast<size_t>(stages), job.model.layers / stages);
    }
    plan.accumulation_steps = job.train.global_batch / (2 * plan.mesh.data);
    return plan;
  }

  /// An attempt at run `name` of `job`, which has no plan yet.
  AttemptSpec AttemptAt(const std::string& name, const JobSpec& job) const {
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.host = "127.0.0.1";
    whole.run_dir = Folder(name);
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    return whole;
  }

  /// Calls run(attempt, store) for each rank of `whole`, in a thread of its own.
  template <class RunRank>
  static void RunInThreads(const AttemptSpec& whole, RunRank&& run) {
    engine::HashStore store;
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < whole.world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec attempt = whole;
        attempt.rank = rank;
        const Result<AttemptOutcome> outcome = run(attempt, store);
        EXPECT_TRUE(outcome.ok()) << "rank " << rank << ": " << outcome.status().message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  /// Runs one phase of run `name` of `job` on the ranks of a spread.
  void RunRanks(const std::string& name, const JobSpec& job, size_t phase,
                const Spread& spread) const {
    AttemptSpec whole = AttemptAt(name, job);
    whole.plan = PlanOn(spread, JobOfPhase(job, phase));
    whole.world_size = RankCount(whole.plan.mesh);
    RunInThreads(whole, [phase](const AttemptSpec& attempt, engine::Store& store) {
      Listener listener(1000);
      return RunPhase(Env::Posix(), attempt, phase, listener, store);
    });
  }

  /// Runs the last phase of `job`, whose phases before are those of run `from`, as run `to` by a
  /// plan, for at most `steps` steps, or goes on.
  void RunLast(const std::string& from, const JobSpec& job, const std::string& to, const Plan& plan,
               int64_t steps = 1000) const {
    const size_t last = PhaseCount(job) - 1;
    AttemptSpec whole = AttemptOfPhase(AttemptAt(from, job), last);
    whole.job_id = to;
    whole.run_dir = Folder(to);
    whole.plan = plan;
    whole.world_size = RankCount(whole.plan.mesh);
    const Status goes = CheckPhaseCompatibility(job, last, JobAsPlanned(whole.job, whole.plan));
    EXPECT_TRUE(goes.ok()) << goes.message();
    RunInThreads(whole, [steps](const AttemptSpec& attempt, engine::Store& store) {
      Listener listener(steps);
      return RunAttempt(Env::Posix(), attempt, listener, store);
    });
  }
  /// The same on the ranks of a spread.
  void RunLast(const std::string& from, const JobSpec& job, const std::string& to,
               const Spread& spread, int64_t steps = 1000) const {
    RunLast(from, job, to, PlanOn(spread, JobOfPhase(job, PhaseCount(job) - 1)), steps);
  }

  /// Compares the newest checkpoint of run `run` with that of the same step of run `one`, which is
  /// of one rank: the whole state of the training and nothing else, number by number.
  void CompareStates(const std::string& run, const std::string& one, double tolerance) const {
    const engine::CheckpointManifest manifest = Manifest(run);
    const std::string folder = engine::CheckpointPath(Folder(one), manifest.step);
    const auto truth = engine::ReadManifest(Env::Posix(), folder);
    ASSERT_TRUE(truth.ok()) << truth.status().message();
    EXPECT_EQ(manifest.updates, truth->updates);
    EXPECT_EQ(manifest.data_offset, truth->data_offset);
    const auto file =
        SafetensorsFile::Open(Env::Posix(), folder + "/state-00000-of-00001.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::map<std::string, std::vector<float>> expected, found;
    std::vector<engine::NamedTensor> targets;
    for (const SafetensorsView& tensor : file->tensors()) {
      ASSERT_EQ(tensor.type, SafetensorsType::kF32) << tensor.name;
      Shape shape;
      for (const uint64_t size : tensor.shape) {
        shape.dims[shape.rank++] = static_cast<int64_t>(size);
      }
      const auto count = static_cast<size_t>(shape.Elements());
      expected[tensor.name].resize(count);
      std::memcpy(expected[tensor.name].data(), tensor.bytes.data(), tensor.bytes.size());
      found[tensor.name].resize(count);
      targets.push_back({tensor.name, {found[tensor.name].data(), DType::kF32, shape}});
    }
    const Status loaded = engine::LoadTensors(
        Env::Posix(), engine::CheckpointPath(Folder(run), manifest.step), manifest, targets);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    for (const auto& [name, values] : expected) {
      for (size_t i = 0; i < values.size(); ++i) {
        const double difference = std::abs(static_cast<double>(values[i]) - found[name][i]);
        ASSERT_LE(difference, tolerance) << name << ", number " << i << " of " << values.size();
      }
    }
  }

  /// Compares what the last phase of `job` is grown to from the phases of run `from`: by the ranks
  /// of a spread, as run `name`, and by one rank. A checkpoint after one step has it: weights move
  /// by at most some 1e-20, first moments are beta1 of themselves with gradients below 1e-20, and
  /// second ones beta2 of themselves. So numbers above 1e-11 have the same bits.
  void CompareGrownStates(const std::string& from, const JobSpec& job, const std::string& name,
                          const Spread& spread) const {
    JobSpec unmoved = job;
    unmoved.phases.back().learning_rate = unmoved.train.gradient_clip_norm = 1e-20;
    const std::string one = OneRankOf(from);
    if (!Env::Posix().FileExists(Folder(one) + "/loss.jsonl")) {
      RunLast(from, unmoved, one, kOneRank, 1);
    }
    RunLast(from, unmoved, name, spread, 1);
    EXPECT_EQ(Manifest(name).step, 1);
    CompareStates(name, one, 1e-18);
  }

  /// Has the runs of CompareGrownStates go on from their checkpoints, as `job` says, and compares
  /// their losses.
  void CompareGrownTrainings(const std::string& from, const JobSpec& job, const std::string& name,
                             const Spread& spread) const {
    const std::string one = OneRankOf(from);
    if (!Env::Posix().FileExists(Folder(one) + "/summary.json")) RunLast(from, job, one, kOneRank);
    RunLast(from, job, name, spread);
    const RunSummary shared = Summary(name), expected = Summary(one);
    EXPECT_EQ(shared.resumed_from_step, 1);
    EXPECT_NEAR(*shared.start_validation_loss_nats, *expected.start_validation_loss_nats, 1e-5);
    EXPECT_NEAR(*shared.validation_loss_nats, *expected.validation_loss_nats, 1e-4);
    EXPECT_EQ(Manifest(name).updates, Manifest(one).updates);
  }
  static std::string OneRankOf(const std::string& from) { return from + "-on-one"; }

  /// Runs a job as run `name`, its last phase on the ranks of one spread and those before it on
  /// those of another, and compares it with run `one` of one rank; and what these phases grow to
  /// with what one rank makes of them.
  void CompareSpread(const JobSpec& job, const std::string& one, const std::string& name,
                     const Spread& first, const Spread& last) const {
    const size_t count = PhaseCount(job);
    for (size_t i = 0; i < count; ++i) RunRanks(name, job, i, i + 1 < count ? first : last);
    const RunSummary shared = Summary(name), expected = Summary(one);
    EXPECT_NEAR(*shared.start_validation_loss_nats, *expected.start_validation_loss_nats, 1e-4);
    EXPECT_NEAR(*shared.validation_loss_nats, *expected.validation_loss_nats, 1e-3);
    ASSERT_EQ(shared.phases.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(shared.phases[i].steps, job.phases[i].steps);
    EXPECT_EQ(Manifest(name).updates, Manifest(one).updates) << "of the optimizer's state";
    CompareGrownStates(name, job, name + "-grown", last);
  }
  /// Runs the last of two phases on the ranks of a spread and compares it with one rank.
  void CompareLast(const JobSpec& job, const Spread& spread) {
    ASSERT_TRUE(Run("one", job).ok());
    RunLast("one", job, "shared", spread);
    const RunSummary shared = Summary("shared"), one = Summary("one");
    EXPECT_EQ(Manifest("shared").updates, Manifest("one").updates);
    EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-5);
    EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
    EXPECT_TRUE(Env::Posix().RemoveTree(Folder("shared")).ok());
  }

  /// The validation loss of the random weights that the network of a job begins with without
  /// growth.
  double FreshLoss(const std::string& name, const JobSpec& job) {
    JobSpec fresh = JobOfPhase(job, PhaseCount(job) - 1);
    fresh.train.steps = 1;
    fresh.optimizer.learning_rate = 1e-12;
    EXPECT_TRUE(Run(name, fresh).ok());
    return *Summary(name).validation_loss_nats;
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
