// Jobs whose phases grow out of each other, from text to the last checkpoint.
#include "worker/trainer/phases.h"

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/rng.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/tiny_run.h"

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

TEST_F(PhasesTest, NewBlocksStartAsRandomOnesDo) {
  JobSpec job = Job({Phase(4), Phase(3, "stack")});
  job.phases[0].layers = 1;
  job.phases[1].growth.new_blocks = "random";
  ASSERT_TRUE(Run("random", job).ok());
  EXPECT_TRUE(std::isfinite(*Summary("random").validation_loss_nats));
  EXPECT_GT(*Summary("random").phases[1].start_validation_loss_nats, 0);
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
