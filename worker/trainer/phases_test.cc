// Jobs whose phases grow out of each other, from text to the last checkpoint.
#include "worker/trainer/phases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using ::testing::HasSubstr;

/// Notes what an attempt tells and asks it to stop after some steps.
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

using PlanChange = std::function<void(Plan&)>;

/// A way to spread the ranks of a phase.
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
     [](Plan& plan) {
       plan.mesh.pipeline = 2;
       plan.stage_blocks = {1, 1};
     }},
    {"tensor-zero-1",
     [](Plan& plan) {
       plan.mesh.data = plan.mesh.tensor = 2;
       plan.zero_stage = 1;
     }},
};

class PhasesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_phases_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    // Words that repeat, so that a few steps learn something.
    PhiloxStream random(PhiloxKey{3, 0, 0});
    const char* const words[] = {"warp ", "weft ", "loom ", "shuttle ", "thread ", "cloth "};
    std::string text;
    for (int i = 0; i < 4000; ++i) text += words[random.Below(6)];
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), root_ + "/text.txt", text).ok());
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
  void CompareWithTwoRanks(const JobSpec& job, const PlanChange& change);

  std::string Folder(const std::string& run) const { return root_ + "/" + run; }
  std::string Read(const std::string& path) const {
    const auto text = ReadFile(Env::Posix(), root_ + "/" + path);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
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

  /// Between the halves of the rows of the first weight of an MLP: the largest difference.
  double DistanceOfCopies(const std::string& run) const {
    const engine::CheckpointManifest manifest = Manifest(run);
    const int64_t width = manifest.job.model.width, rows = MlpWidth(manifest.job.model);
    std::vector<float> weight(static_cast<size_t>(rows * width));
    const Status loaded = engine::LoadTensors(
        Env::Posix(), engine::CheckpointPath(Folder(run), manifest.step), manifest,
        {{"transformer.h.0.mlp.c_fc.weight", {weight.data(), DType::kF32, {rows, width}}}},
        engine::ExtraTensors::kIgnore);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
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

TEST_F(PhasesTest, AVCycleTrainsEachLevelInItsFolder) {
  const auto outcome = Run("cycle", VCycle());
  ASSERT_TRUE(outcome.ok() && outcome->summary);
  EXPECT_EQ(Manifest("cycle/phase-1").job.model.width, 32);
  EXPECT_EQ(Manifest("cycle/phase-2").job.model.width, 16);
  EXPECT_EQ(Manifest("cycle/phase-2").job.model.layers, 1);
  EXPECT_EQ(Manifest("cycle").job.model.width, 32);
  const RunSummary summary = Summary("cycle");
  EXPECT_EQ(summary.steps, 8);
  ASSERT_EQ(summary.phases.size(), 3u);
  EXPECT_EQ(summary.phases[0].steps, 6);
  EXPECT_EQ(summary.phases[1].steps, 10);
  EXPECT_EQ(summary.phases[1].phase, "phase 2 of 3");
  EXPECT_LT(summary.phases[1].parameters, summary.phases[0].parameters);
  EXPECT_LT(summary.phases[1].training_flops / static_cast<double>(summary.phases[1].tokens),
            summary.phases[0].training_flops / static_cast<double>(summary.phases[0].tokens));
  EXPECT_EQ(summary.phases[0].start_validation_loss_nats, std::nullopt);
  for (const size_t grown : {1, 2}) {
    // Far from what random weights have.
    ASSERT_TRUE(summary.phases[grown].start_validation_loss_nats);
    EXPECT_LT(*summary.phases[grown].start_validation_loss_nats,
              *summary.phases[0].validation_loss_nats + 0.5);
  }
  EXPECT_LT(*summary.validation_loss_nats, *summary.phases[0].validation_loss_nats);
  EXPECT_THAT(events_, HasSubstr("grown by decoalesce"));
  EXPECT_THAT(events_, HasSubstr("the grown weights have validation loss "));
}

TEST_F(PhasesTest, ARunThatIsStoppedGoesOnInItsPhaseBitForBit) {
  const JobSpec job = VCycle();
  ASSERT_TRUE(Run("whole", job).ok());
  // In the first phase, twice in the second, in the last.
  for (const int64_t steps : {3, 5, 4, 7}) {
    const auto outcome = Run("stopped", job, steps);
    ASSERT_TRUE(outcome.ok());
    EXPECT_FALSE(outcome->summary) << "after " << steps << " more steps";
  }
  const auto outcome = Run("stopped", job);
  ASSERT_TRUE(outcome.ok() && outcome->summary);
  for (const char* phase : {"/phase-1", "/phase-2", ""}) {
    EXPECT_EQ(Read("stopped" + std::string(phase) + "/loss.jsonl"),
              Read("whole" + std::string(phase) + "/loss.jsonl"));
    EXPECT_EQ(FinalState("stopped" + std::string(phase)), FinalState("whole" + std::string(phase)));
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Summary("stopped").phases[i].start_validation_loss_nats,
              Summary("whole").phases[i].start_validation_loss_nats);
  }
}

TEST_F(PhasesTest, ARunThatIsCompleteIsNotRunAgain) {
  const JobSpec job = VCycle();
  ASSERT_TRUE(Run("twice", job).ok());
  const std::string losses = Read("twice/loss.jsonl");
  ASSERT_TRUE(Run("twice", job).ok());
  EXPECT_EQ(Read("twice/loss.jsonl"), losses);
  EXPECT_EQ(Summary("twice").phases.size(), 3u);
  EXPECT_EQ(Summary("twice").phases[1].steps, 10);
}

TEST_F(PhasesTest, PhasesOfOneModelWithTheStateOfTheOptimizerAreOneTraining) {
  JobSpec parts = Job({Phase(8), Phase(12)});
  parts.phases[1].growth.optimizer_state = "kept";
  JobSpec whole = Job({});
  whole.train.steps = 20;
  ASSERT_TRUE(Run("parts", parts).ok());
  ASSERT_TRUE(Run("whole", whole).ok());
  EXPECT_EQ(Manifest("parts").updates, 20);
  EXPECT_EQ(Manifest("parts").data_offset, 8);
  EXPECT_EQ(FinalState("parts"), FinalState("whole"));
}

TEST_F(PhasesTest, ALargerBatchGoesOnWhereTheDataWereLeft) {
  JobSpec job = Job({Phase(3), Phase(2), Phase(2)});
  job.phases[1].global_batch = 8;
  job.phases[2].global_batch = 8;
  job.phases[2].sequence_length = 8;
  ASSERT_TRUE(Run("batches", job).ok());
  // 12 sequences of 16 tokens were read, then 16 more after the 4 that end a batch of 8.
  EXPECT_EQ(Manifest("batches/phase-2").data_offset, 2);
  EXPECT_EQ(Manifest("batches").data_offset, 8);
}

TEST_F(PhasesTest, AWarmUpOfTheBatchEndsInTheFirstPhase) {
  JobSpec job = Job({Phase(4), Phase(3)});
  job.train.batch_warmup_start = 1;
  job.train.batch_warmup_steps = 4;
  ASSERT_TRUE(Run("warmup", job).ok());
  // 1, 1, 2 and 3 sequences, which are two batches of 4 begun.
  EXPECT_EQ(Summary("warmup").phases[0].tokens, 7 * 16);
  EXPECT_EQ(Manifest("warmup").data_offset, 2);
  EXPECT_EQ(Summary("warmup").phases[1].tokens, 12 * 16);
}

TEST_F(PhasesTest, GrowthThatKeepsTheFunctionKeepsTheLoss) {
  JobSpec stack = Job({Phase(6), Phase(4, "stack")});
  stack.phases[0].layers = 1;
  stack.phases[1].growth.new_blocks = "identity";
  JobSpec wide = Job({Phase(6), Phase(4, "fpi")});
  wide.phases[0].width = 16;
  wide.phases[0].heads = 1;
  for (const auto& [name, job] : {std::pair{"stack", stack}, {"wide", wide}}) {
    ASSERT_TRUE(Run(name, job).ok());
    const RunSummary summary = Summary(name);
    EXPECT_NEAR(*summary.phases[1].start_validation_loss_nats,
                *summary.phases[0].validation_loss_nats, 1e-5)
        << name;
    EXPECT_LT(*summary.validation_loss_nats, *summary.phases[0].validation_loss_nats) << name;
  }
  EXPECT_THAT(events_, HasSubstr("with the optimizer's state")) << "fpi keeps it";
  EXPECT_EQ(Manifest("wide").updates, 10);
  EXPECT_EQ(Manifest("stack").updates, 4);
}

TEST_F(PhasesTest, CopiesWithoutTheStateOfTheirOriginalsPartWays) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const auto job = [&](const char* method) {
      JobSpec wide = Job({Phase(20), Phase(6, method)});
      wide.optimizer.name = optimizer;
      wide.phases[0].width = 16;
      wide.phases[0].heads = 1;
      return wide;
    };
    const std::string name = optimizer;
    ASSERT_TRUE(Run(name + "-fpi", job("fpi")).ok());
    ASSERT_TRUE(Run(name, job("sparkling")).ok());
    EXPECT_THAT(events_, HasSubstr("grown by sparkling, with the optimizer's state"));
    EXPECT_EQ(Manifest(name).updates, 26);
    // Twice the width is the same function.
    const PhaseSummary grown = Summary(name).phases[1];
    EXPECT_NEAR(*grown.start_validation_loss_nats, *Summary(name).phases[0].validation_loss_nats,
                1e-5);
    EXPECT_LT(DistanceOfCopies(name + "-fpi"), 1e-4);
    EXPECT_GT(DistanceOfCopies(name), 1e-3);

    ASSERT_TRUE(Run(name + "-stopped", job("sparkling"), 23).ok());
    ASSERT_TRUE(Run(name + "-stopped", job("sparkling")).ok());
    EXPECT_EQ(FinalState(name + "-stopped"), FinalState(name));
  }
}

TEST_F(PhasesTest, ImagesGrowWithTheNetwork) {
  JobSpec job = Job({Phase(30), Phase(10, "stack"), Phase(10)});
  job.model.family = "vit";
  job.model.image_size = 12;
  job.model.patch_size = 3;
  job.model.image_channels = 1;
  job.data = {};
  job.data.train = {std::string(WEFT_SOURCE_DIR) + "/docs/examples/shapes-images-idx3-ubyte.gz"};
  job.data.validation_fraction = 0.2;
  job.train.averaging.kind = "ema";
  job.train.averaging.decay = 0.9;
  job.phases[0].image_size = 6;
  job.phases[0].layers = 1;
  job.phases[1].image_size = 9;
  job.phases[1].growth.new_blocks = "averaged";
  ASSERT_TRUE(Run("images", job).ok());
  const RunSummary summary = Summary("images");
  EXPECT_EQ(summary.phases[0].tokens, 30 * 4 * (2 * 2 + 1));
  EXPECT_EQ(summary.phases[1].tokens, 10 * 4 * (3 * 3 + 1));
  EXPECT_EQ(summary.phases[2].tokens, 10 * 4 * (4 * 4 + 1));
  EXPECT_EQ(Manifest("images/phase-1").job.model.image_size, 6);
  EXPECT_EQ(Manifest("images/phase-2").data_offset, 30) << "an image is one whatever its size";
  ASSERT_TRUE(summary.phases[1].start_validation_loss_nats);
  EXPECT_TRUE(std::isfinite(*summary.phases[1].start_validation_loss_nats));
}

TEST_F(PhasesTest, ALearnedGrowthStartsLowerThanItsCopies) {
  JobSpec copies = Job({Phase(30), Phase(4, "fpi")});
  copies.phases[0].layers = 1;
  copies.phases[0].width = 16;
  copies.phases[1].growth.optimizer_state = "new";
  JobSpec learned = copies;
  learned.phases[1].growth.method = "ligo";
  learned.phases[1].growth.fit_steps = 20;
  learned.phases[1].growth.fit_learning_rate = 3e-3;
  ASSERT_TRUE(Run("copies", copies).ok());
  ASSERT_TRUE(Run("learned", learned).ok());
  EXPECT_THAT(events_, HasSubstr("grown by ligo, learned in 20 steps from loss "));
  const PhaseSummary fpi = Summary("copies").phases[1], ligo = Summary("learned").phases[1];
  EXPECT_LT(*ligo.start_validation_loss_nats, *fpi.start_validation_loss_nats - 0.05);
  // The data and the work of the steps that learn count.
  EXPECT_EQ(Manifest("learned").data_offset, 30 + 20);
  EXPECT_EQ(ligo.tokens, fpi.tokens);
  EXPECT_GT(ligo.training_flops, 6 * fpi.training_flops) << "20 steps and the operator, then 4";

  // Within a phase the operator is not learned again.
  ASSERT_TRUE(Run("stopped", learned, 32).ok());
  ASSERT_TRUE(Run("stopped", learned).ok());
  EXPECT_EQ(FinalState("stopped"), FinalState("learned"));
  EXPECT_EQ(Summary("stopped").phases[1].training_flops, ligo.training_flops);
  EXPECT_EQ(Summary("stopped").phases[1].start_validation_loss_nats,
            ligo.start_validation_loss_nats);
}

TEST_F(PhasesTest, SampledDepthsGrowIntoLayersWithoutASeam) {
  JobSpec job = Job({Phase(6), Phase(4, "stack")});
  job.phases[0].layers = 1;
  job.train.sampled_layers = 2;
  ASSERT_TRUE(Run("sampled", job).ok());
  ASSERT_TRUE(Run("stopped", job, 3).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(FinalState("stopped"), FinalState("sampled"));
  EXPECT_EQ(Read("stopped/phase-1/loss.jsonl"), Read("sampled/phase-1/loss.jsonl"));
  // Some steps of the first phase have run two layers, others one.
  const RunSummary summary = Summary("sampled");
  const auto flops_of_token = [&](size_t phase) {
    return summary.phases[phase].training_flops / static_cast<double>(summary.phases[phase].tokens);
  };
  EXPECT_LT(flops_of_token(0), flops_of_token(1));
}

TEST_F(PhasesTest, NewBlocksStartAsRandomOnesDo) {
  JobSpec job = Job({Phase(4), Phase(3, "stack")});
  job.phases[0].layers = 1;
  job.phases[1].growth.new_blocks = "random";
  ASSERT_TRUE(Run("random", job).ok());
  EXPECT_TRUE(std::isfinite(*Summary("random").validation_loss_nats));
  EXPECT_GT(*Summary("random").phases[1].start_validation_loss_nats, 0);
}

TEST_F(PhasesTest, AModelWithoutBlocksLearnsAndGrowsAllOfThem) {
  JobSpec job = Job({Phase(8), Phase(6, "stack")});
  job.phases[0].layers = 0;
  job.phases[1].growth.new_blocks = "random";
  job.phases[1].growth.optimizer_state = "kept";
  ASSERT_TRUE(Run("none", job).ok());
  EXPECT_EQ(Manifest("none/phase-1").job.model.layers, 0);
  EXPECT_EQ(Manifest("none").job.model.layers, job.model.layers);
  EXPECT_EQ(Manifest("none").updates, 14);
  const RunSummary summary = Summary("none");
  // Each token tells something of the next one, which random weights do not.
  EXPECT_LT(*summary.phases[0].validation_loss_nats, std::log(264.0) - 0.1);
  EXPECT_LT(*summary.validation_loss_nats, *summary.phases[1].start_validation_loss_nats);
  for (const int64_t steps : {3, 8}) ASSERT_TRUE(Run("stopped", job, steps).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  for (const char* phase : {"/phase-1", ""}) {
    EXPECT_EQ(FinalState("stopped" + std::string(phase)), FinalState("none" + std::string(phase)));
  }
}

TEST_F(PhasesTest, MasksOfGrowthHideWhatIsNewAndRiseToAllOfIt) {
  const JobSpec job = Masked();
  ASSERT_TRUE(Run("masks", job).ok());
  const RunSummary summary = Summary("masks");
  EXPECT_NEAR(*summary.phases[1].start_validation_loss_nats,
              *summary.phases[0].validation_loss_nats, 1e-5);
  EXPECT_LT(*summary.validation_loss_nats, *summary.phases[1].start_validation_loss_nats);
  EXPECT_THAT(events_, HasSubstr("grown by msg, with the optimizer's state"));
  EXPECT_EQ(Manifest("masks").updates, 6 + 9);
  // Within the ramp, at its end, and after it.
  for (const int64_t steps : {8, 2, 3}) ASSERT_TRUE(Run("stopped", job, steps).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(Read("stopped/loss.jsonl"), Read("masks/loss.jsonl"));
  EXPECT_EQ(FinalState("stopped"), FinalState("masks"));
}

TEST_F(PhasesTest, ACheckpointWithMasksIsNotGrownFromOrExported) {
  const JobSpec job = Masked();
  ASSERT_TRUE(Run("masks", job, 6 + 3).ok());
  engine::CheckpointManifest manifest = Manifest("masks");
  ASSERT_LT(manifest.step, job.phases[1].growth.ramp_steps);
  engine::ModelOptions options;
  options.precision = &kFp32Precision;
  engine::TinyRun run(manifest.job.model, options);
  const std::string folder = Folder(engine::CheckpointPath("masks", manifest.step));
  const Status status = LoadTrainedWeights(Env::Posix(), folder, manifest, run.model->parameters());
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("one of step 5 or later"));
  manifest.step = job.phases[1].growth.ramp_steps;
  EXPECT_TRUE(LoadTrainedWeights(Env::Posix(), folder, manifest, run.model->parameters()).ok());
}

/// Runs the last of two phases on two ranks, with a plan that `change` makes of that of one, and
/// compares it with one rank.
void PhasesTest::CompareWithTwoRanks(const JobSpec& job, const PlanChange& change) {
  ASSERT_TRUE(Run("one", job).ok());
  RunLastOnTwoRanks("one", job, "shared", change);
  const RunSummary shared = Summary("shared"), one = Summary("one");
  EXPECT_EQ(Manifest("shared").updates, Manifest("one").updates);
  EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-5);
  EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
  EXPECT_TRUE(Env::Posix().RemoveTree(Folder("shared")).ok());
}

PlanChange Zero(int64_t stage) {
  return [stage](Plan& plan) {
    plan.micro_batch = 2;
    plan.mesh.data = 2;
    plan.zero_stage = stage;
  };
}

TEST_F(PhasesTest, RanksThatShareParametersGrowTheirParts) {
  JobSpec job = Job({Phase(4), Phase(3, "decoalesce")});
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  job.phases[1].growth.alpha = 1;
  CompareWithTwoRanks(job, Zero(3));
}

TEST_F(PhasesTest, RanksThatShareStateOrMatricesGrowTheirPartsOfThem) {
  for (const int64_t stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    CompareWithTwoRanks(Masked(), Zero(stage));
  }
  CompareWithTwoRanks(Masked(), [](Plan& plan) { plan.mesh.tensor = 2; });
  CompareWithTwoRanks(Masked(), [](Plan& plan) {
    plan.mesh.pipeline = 2;
    plan.stage_blocks = {1, 1};
    plan.micro_batch = 2;
    plan.accumulation_steps = 2;
  });
}

TEST_F(PhasesTest, RanksLearnAGrowthTogether) {
  JobSpec job = Job({Phase(8), Phase(3, "ligo")});
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  job.phases[1].growth.fit_steps = 6;
  ASSERT_TRUE(Run("one", job).ok());
  RunLastOnTwoRanks("one", job, "shared", Zero(0));
  const RunSummary shared = Summary("shared"), one = Summary("one");
  EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-4);
  EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
  EXPECT_EQ(shared.training_flops, one.training_flops);
}

TEST_F(PhasesTest, RanksOfAnyMeshGrowTheirPartsFromThoseOfAnother) {
  // From half the width and one block, with and without the optimizer's state; on as many heads as
  // ranks share.
  for (const char* method : {"fpi", "decoalesce"}) {
    JobSpec job = Job({Phase(4), Phase(3, method)});
    job.phases[0].layers = 1;
    job.phases[0].width = 16;
    job.phases[1].growth.alpha = 1;
    job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    for (const Spread& spread : kSpreads) {
      SCOPED_TRACE(std::string(method) + " on " + spread.name);
      AttemptSpec whole;
      whole.job_id = std::string(spread.name) + "-" + method;
      whole.epoch = 1;
      whole.host = "127.0.0.1";
      whole.run_dir = Folder(whole.job_id);
      whole.cache_dir = root_ + "/cache";
      whole.job = job;
      // The small model has one head and block: its ranks share the optimizer's state alone.
      RunRanks(whole, 0, kSpreads[1]);
      RunRanks(whole, 1, spread);
      const RunSummary shared = Summary(whole.job_id), expected = Summary(one);
      EXPECT_NEAR(*shared.start_validation_loss_nats, *expected.start_validation_loss_nats, 1e-4);
      EXPECT_NEAR(*shared.validation_loss_nats, *expected.validation_loss_nats, 1e-3);
      ASSERT_EQ(shared.phases.size(), 2u);
      EXPECT_EQ(shared.phases[0].steps, 4);
      EXPECT_EQ(Manifest(whole.job_id).updates, 7) << "the optimizer's state was grown";
    }
  }
}

TEST_F(PhasesTest, APhaseThatWasLostOrIsOfAnotherJobSaysWhatToDo) {
  JobSpec job = Job({Phase(2), Phase(2)});
  ASSERT_TRUE(Run("lost", job).ok());
  job.phases[0].steps = 3;
  Status status = Start("lost", job).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("was trained with another model or number of steps"));
  job.phases[0].steps = 2;
  ASSERT_TRUE(Env::Posix().RemoveTree(Folder("lost/phase-1/checkpoints")).ok());
  status = Start("lost", job).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("lost/phase-1 is complete, and its last checkpoint"));
}

}  // namespace
}  // namespace weft::trainer
