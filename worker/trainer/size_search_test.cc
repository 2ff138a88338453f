// The choice of a phase's size: its rule, and jobs that search.
#include "worker/trainer/size_search.h"

#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/model/step_extent.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/data/elastic_images.h"
#include "worker/engine/techniques/layer_sampling/elastic_network.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/phases.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

using ::testing::HasSubstr;

SizeChoice Chosen(std::vector<SizeCandidate> candidates) {
  SizeChoice choice;
  choice.candidates = std::move(candidates);
  ChooseSize(choice);
  return choice;
}

TEST(ChooseSize, TakesTheOneBelowTheCurve) {
  // On 8 time^-0.5 except one that is lower.
  const auto loss = [](double time) { return 8 / std::sqrt(time); };
  for (const size_t better : {0, 1, 2, 3}) {
    std::vector<SizeCandidate> candidates;
    for (const int64_t layers : {1, 2, 4, 8}) {
      const auto time = static_cast<double>(layers * 10);
      candidates.push_back({layers, loss(time), time});
    }
    candidates[better].loss_nats *= 0.9;
    const SizeChoice choice = Chosen(candidates);
    EXPECT_EQ(choice.layers, candidates[better].layers);
    EXPECT_NEAR(choice.exponent, 0.5, 0.05);
  }
}

TEST(ChooseSize, WeighsTheTimeByTheFittedPower) {
  // Twice the time for a tenth less loss, then for next to nothing less.
  const SizeChoice choice = Chosen({{2, 3.0, 1}, {4, 2.7, 2}, {8, 2.69, 4}});
  const double exponent = -std::log(2.69 / 3.0) / std::log(4.0);
  EXPECT_NEAR(choice.exponent, exponent, 1e-12);
  EXPECT_EQ(choice.layers, 4);
}

TEST(ChooseSize, OfEqualOnesTheFastest) {
  // All on one curve: losses and times weigh up.
  EXPECT_EQ(Chosen({{8, 1.0, 8}, {2, 2.0, 2}, {4, std::sqrt(2.0), 4}}).layers, 2);
  // And the same whatever their order.
  EXPECT_EQ(Chosen({{2, 2.0, 2}, {4, std::sqrt(2.0), 4}, {8, 1.0, 8}}).layers, 2);
  EXPECT_EQ(Chosen({{4, 3.0, 4}, {2, 3.0, 2}, {8, 3.0, 8}}).layers, 2);
}

TEST(ChooseSize, LooksAtTheLossAloneWhereMoreTimeIsNoBetter) {
  const SizeChoice choice = Chosen({{1, 2.5, 1}, {2, 2.4, 2}, {4, 2.9, 4}, {8, 3.0, 8}});
  EXPECT_EQ(choice.exponent, 0);
  EXPECT_EQ(choice.layers, 2);
}

class SizeSearchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_search_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), root_ + "/text.txt", RepeatedWords()).ok());
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Ten steps of search and ten of what it chooses, then all layers.
  JobSpec Job(const std::string& family = "gpt2") const {
    JobSpec job = engine::TinyJob(4);
    job.model.family = family;
    job.model.layers = 4;
    job.model.vocab_size = 0;
    job.data.train = {root_ + "/text.txt"};
    job.data.tokenizer.vocab_size = 264;
    if (family == "vit") {
      job.model.image_size = 12;
      job.model.patch_size = 3;
      job.model.image_channels = 1;
      job.data = {};
      job.data.train = {std::string(WEFT_SOURCE_DIR) +
                        "/docs/examples/shapes-images-idx3-ubyte.gz"};
      job.data.validation_fraction = 0.2;
    }
    job.optimizer.learning_rate = 3e-3;
    job.schedule.kind = "cosine";
    job.train.precision = "fp32";
    job.train.eval_every_steps = 0;
    job.train.eval_sequences = 8;
    job.checkpoint.every_steps = 4;
    PhaseSpec first, last;
    first.steps = 20;
    first.layers = 3;
    first.search.steps = 10;
    first.search.layers = {1, 2, 3};
    last.steps = 4;
    last.growth.method = "stack";
    job.phases = {first, last};
    return job;
  }

  Result<AttemptOutcome> Start(const std::string& name, const JobSpec& job, int64_t steps = 1000) {
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.run_dir = root_ + "/" + name;
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    Plan plan = engine::TinyPlan("fp32", 4, 1);
    plan.block_memory_policy = {"recompute", "keep", "keep"};
    Plan last = plan;
    last.block_memory_policy.clear();
    Listener listener(steps);
    engine::HashStore store;
    auto outcome = RunPhases(
        Env::Posix(), whole, {plan, last}, [](size_t) {}, listener, store);
    events_ = listener.events;
    return outcome;
  }
  Result<AttemptOutcome> Run(const std::string& name, const JobSpec& job, int64_t steps = 1000) {
    auto outcome = Start(name, job, steps);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome;
  }

  /// Images of six or twelve pixels a side, with one to three layers.
  JobSpec ImageJob() const {
    JobSpec job = Job("vit");
    job.phases[0].search.image_sizes = {6, 12};
    return job;
  }

  /// Runs the first phase of `job` on two ranks, with a plan that `change` makes of that of one.
  void RunFirstOnTwoRanks(const std::string& name, const JobSpec& job, const PlanChange& change) {
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.host = "127.0.0.1";
    whole.run_dir = root_ + "/" + name;
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    whole.plan = engine::TinyPlan("fp32", 4, 1);
    whole.world_size = 2;
    change(whole.plan);
    engine::HashStore store;
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec attempt = whole;
        attempt.rank = rank;
        Listener listener(1000);
        const auto outcome = RunPhase(Env::Posix(), attempt, 0, listener, store);
        EXPECT_TRUE(outcome.ok()) << "rank " << rank << ": " << outcome.status().message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  std::string Read(const std::string& path) const {
    const auto text = ReadFile(Env::Posix(), root_ + "/" + path);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
  }
  RunSummary Summary(const std::string& run) const {
    return *FromJson<RunSummary>(*ParseJson(Read(run + "/summary.json")));
  }
  SizeChoice Choice(const std::string& run) const {
    return *FromJson<SizeChoice>(*ParseJson(Read(run + "/phase-1/search/search.json")));
  }
  engine::CheckpointManifest Manifest(const std::string& run) const {
    const auto search = engine::LatestVerified(Env::Posix(), root_ + "/" + run);
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

TEST_F(SizeSearchTest, APhaseGoesOnWithTheSizeThatItHasChosen) {
  for (const char* family : {"gpt2", "llama", "vit"}) {
    const JobSpec job = Job(family);
    const std::string name = family;
    ASSERT_TRUE(Run(name, job).ok());
    EXPECT_THAT(events_, HasSubstr("the search has chosen "));
    const SizeChoice choice = Choice(name);
    SizeChoice again = choice;
    ChooseSize(again);
    EXPECT_EQ(again.layers, choice.layers);
    ASSERT_EQ(choice.candidates.size(), 3u);
    EXPECT_EQ(choice.steps, 10);

    const engine::CheckpointManifest chosen = Manifest(name + "/phase-1");
    EXPECT_EQ(chosen.job.model.layers, choice.layers);
    EXPECT_EQ(chosen.step, 20);
    EXPECT_EQ(chosen.updates, 20) << "the optimizer's state goes on";
    EXPECT_EQ(Manifest(name + "/phase-1/search").job.model.layers, 3);
    EXPECT_EQ(Manifest(name).job.model.layers, 4);
    EXPECT_EQ(Manifest(name).data_offset, 20);

    // The steps of the search count, each with the layers that it had.
    const PhaseSummary phase = Summary(name).phases[0];
    EXPECT_EQ(phase.chosen_layers, choice.layers);
    EXPECT_EQ(phase.steps, 20);
    EXPECT_EQ(phase.tokens, 2 * choice.tokens);
    EXPECT_GT(phase.seconds, choice.seconds);
    const auto flops_of = [&](int64_t layers) {
      JobSpec part = chosen.job;
      part.model.layers = layers;
      return MeanFlopsPerToken(part, 1);
    };
    const engine::ElasticNetwork depth{job.phases[0].search.layers, {}, job.train.seed};
    double flops = 0;
    std::map<int64_t, int64_t> drawn;
    for (int64_t step = 0; step < 20; ++step) {
      const int64_t layers = step < 10 ? depth.LayersOfStep(step) : choice.layers;
      flops += flops_of(layers) * static_cast<double>(choice.tokens) / 10;
      ++drawn[layers];
    }
    EXPECT_NEAR(phase.training_flops, flops, 1e-9 * flops);
    EXPECT_GT(drawn.size(), 1u);
    // The part goes on where the whole was, by the schedule of the phase.
    ASSERT_TRUE(phase.start_validation_loss_nats && phase.validation_loss_nats);
    EXPECT_LT(*phase.validation_loss_nats, *phase.start_validation_loss_nats);
    const std::string losses = Read(name + "/phase-1/loss.jsonl");
    EXPECT_THAT(losses, HasSubstr("\"step\":11"));
  }
}

TEST_F(SizeSearchTest, AScheduleOfAllPhasesRunsOnThroughTheSearch) {
  JobSpec job = Job();
  job.schedule = {.kind = "linear", .warmup_steps = 0, .final_ratio = 0};
  for (PhaseSpec& phase : job.phases) phase.schedule = "continued";
  ASSERT_TRUE(Run("searched", job).ok());
  std::vector<double> rates;
  for (const char* folder : {"/phase-1/search", "/phase-1", ""}) {
    std::istringstream text(Read(std::string("searched") + folder + "/loss.jsonl"));
    for (std::string line; std::getline(text, line);) {
      rates.push_back((*ParseJson(line))["learning_rate"].get<double>());
    }
  }
  // Ten steps of the search, ten of what it chose, and four of the last phase.
  ASSERT_EQ(rates.size(), 24u);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_NEAR(rates[i], 3e-3 * static_cast<double>(23 - i) / 24, 1e-12) << i;
  }
}

TEST_F(SizeSearchTest, ARunThatIsStoppedChoosesTheSame) {
  JobSpec job = Job();
  ASSERT_TRUE(Run("whole", job).ok());
  // In the search, at its end, after it, and in the next phase.
  for (const int64_t steps : {3, 7, 5, 6}) {
    const auto outcome = Run("stopped", job, steps);
    ASSERT_TRUE(outcome.ok());
    EXPECT_FALSE(outcome->summary) << "after " << steps << " more steps";
  }
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(Choice("stopped").layers, Choice("whole").layers);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Choice("stopped").candidates[i].loss_nats, Choice("whole").candidates[i].loss_nats);
  }
  for (const char* folder : {"/phase-1/search", "/phase-1", ""}) {
    EXPECT_EQ(FinalState(std::string("stopped") + folder),
              FinalState(std::string("whole") + folder));
    EXPECT_EQ(Read(std::string("stopped") + folder + "/loss.jsonl"),
              Read(std::string("whole") + folder + "/loss.jsonl"));
  }
  EXPECT_EQ(Summary("stopped").phases[0].training_flops, Summary("whole").phases[0].training_flops);

  // A choice that was lost is made again, of the state that the search came to.
  ASSERT_TRUE(Env::Posix().RemoveTree(root_ + "/stopped/phase-1/checkpoints").ok());
  ASSERT_TRUE(Env::Posix().RemoveFile(root_ + "/stopped/phase-1/summary.json").ok());
  ASSERT_TRUE(Env::Posix().RemoveFile(root_ + "/stopped/phase-1/search/search.json").ok());
  ASSERT_TRUE(Env::Posix().RemoveTree(root_ + "/stopped/checkpoints").ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(Choice("stopped").layers, Choice("whole").layers);
  EXPECT_EQ(FinalState("stopped"), FinalState("whole"));

  job.phases[0].search.steps = 12;
  ASSERT_TRUE(Env::Posix().RemoveFile(root_ + "/stopped/phase-1/summary.json").ok());
  const auto other = Start("stopped", job);
  EXPECT_EQ(other.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(other.status().message(), HasSubstr("had other steps or sizes"));
}

TEST_F(SizeSearchTest, APhaseGoesOnFromTheLastStepOfItsSearchAlone) {
  const JobSpec job = Job();
  ASSERT_TRUE(Run("sound", job).ok());
  ASSERT_TRUE(Run("damaged", job).ok());
  const std::string phase = root_ + "/damaged/phase-1", search = phase + "/search";
  for (const std::string& folder : {phase, root_ + "/damaged"}) {
    ASSERT_TRUE(Env::Posix().RemoveTree(folder + "/checkpoints").ok());
    ASSERT_TRUE(Env::Posix().RemoveFile(folder + "/summary.json").ok());
  }
  ASSERT_TRUE(Env::Posix().FileExists(engine::CheckpointPath(search, 4)));
  ASSERT_TRUE(
      WriteFileAtomic(Env::Posix(), engine::CheckpointPath(search, 10) + "/manifest.json", "{}")
          .ok());
  const auto refused = Start("damaged", job);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.status().message(),
              HasSubstr(search + " has no sound checkpoint of its last step, the newest is " +
                        engine::CheckpointsFolder(search)));
  EXPECT_THAT(refused.status().message(), HasSubstr("delete " + search + "/search.json and"));
  ASSERT_TRUE(Env::Posix().RemoveFile(search + "/search.json").ok());
  ASSERT_TRUE(Run("damaged", job).ok());
  EXPECT_EQ(FinalState("damaged"), FinalState("sound"));
}

TEST_F(SizeSearchTest, AveragedWeightsAreCompared) {
  JobSpec job = Job();
  job.train.averaging.kind = "ema";
  job.train.averaging.decay = 0.9;
  ASSERT_TRUE(Run("last", Job()).ok());
  ASSERT_TRUE(Run("averaged", job).ok());
  EXPECT_EQ(Read("averaged/phase-1/search/loss.jsonl"), Read("last/phase-1/search/loss.jsonl"));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NE(Choice("averaged").candidates[i].loss_nats, Choice("last").candidates[i].loss_nats);
  }
  EXPECT_EQ(Manifest("averaged/phase-1").updates, 10) << "a new state of the optimizer";
}

TEST_F(SizeSearchTest, SizesOfImagesAreChosenWithTheLayers) {
  const JobSpec job = ImageJob();
  ASSERT_TRUE(Run("images", job).ok());
  EXPECT_THAT(events_, HasSubstr("pixels a side"));
  const SizeChoice choice = Choice("images");
  ASSERT_EQ(choice.candidates.size(), 6u);
  EXPECT_EQ(choice.candidates[0].image_size, 6);
  EXPECT_EQ(choice.candidates[1].image_size, 12);
  EXPECT_GT(choice.candidates[1].flops_per_sequence, 3 * choice.candidates[0].flops_per_sequence);
  EXPECT_NE(choice.candidates[1].loss_nats, choice.candidates[0].loss_nats);
  const engine::CheckpointManifest chosen = Manifest("images/phase-1");
  EXPECT_EQ(chosen.job.model.layers, choice.layers);
  EXPECT_EQ(chosen.job.model.image_size, choice.image_size);
  EXPECT_EQ(Manifest("images/phase-1/search").job.model.image_size, 12);
  EXPECT_EQ(Manifest("images").job.model.image_size, 12);
  const PhaseSummary phase = Summary("images").phases[0];
  EXPECT_EQ(phase.chosen_image_size, choice.image_size);

  // Each step has the layers of its number and the images of its batch.
  const engine::ElasticNetwork network{job.phases[0].search.layers, {}, job.train.seed};
  const engine::ElasticImages images(std::vector<std::unique_ptr<engine::BatchSource>>(2),
                                     job.train.seed);
  int64_t tokens = 0, of_search = 0;
  double flops = 0;
  for (int64_t step = 0; step < 20; ++step) {
    if (step == 10) of_search = tokens;
    PhaseSize size{choice.layers, choice.image_size};
    if (step < 10) {
      size = {network.LayersOfStep(step), job.phases[0].search.image_sizes[images.SizeOf(step)]};
    }
    const JobSpec part = WithSize(chosen.job, size);
    const int64_t of_step = 4 * SequenceLength(part);
    tokens += of_step;
    flops += static_cast<double>(of_step) * MeanFlopsPerToken(part, 1);
  }
  EXPECT_EQ(choice.tokens, of_search);
  EXPECT_EQ(phase.tokens, tokens);
  EXPECT_NEAR(phase.training_flops, flops, 1e-9 * flops);
}

TEST_F(SizeSearchTest, ASearchAmongImagesThatIsStoppedChoosesTheSame) {
  JobSpec job = ImageJob();
  job.phases[0].search.layers = {};
  job.phases[0].search.image_sizes = {3, 6, 12};
  ASSERT_TRUE(Run("whole", job).ok());
  for (const int64_t steps : {4, 9}) {
    const auto outcome = Run("stopped", job, steps);
    ASSERT_TRUE(outcome.ok());
    EXPECT_FALSE(outcome->summary) << "after " << steps << " more steps";
  }
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(Choice("stopped").image_size, Choice("whole").image_size);
  for (const char* folder : {"/phase-1/search", "/phase-1", ""}) {
    EXPECT_EQ(FinalState(std::string("stopped") + folder),
              FinalState(std::string("whole") + folder));
  }
  EXPECT_EQ(Summary("stopped").phases[0].training_flops, Summary("whole").phases[0].training_flops);
}

TEST_F(SizeSearchTest, RanksSearchTogether) {
  const std::pair<const char*, PlanChange> ways[] = {
      {"data", [](Plan& plan) { plan.mesh.data = 2, plan.micro_batch = 2; }},
      {"zero-2", [](Plan& plan) { plan.mesh.data = 2, plan.micro_batch = 2, plan.zero_stage = 2; }},
      {"tensor", [](Plan& plan) { plan.mesh.tensor = 2; }},
      {"context", [](Plan& plan) { plan.mesh.context = 2; }},
  };
  const JobSpec job = Job();
  ASSERT_TRUE(Run("one", job).ok());
  const SizeChoice expected = Choice("one");
  for (const auto& [way, change] : ways) {
    SCOPED_TRACE(way);
    RunFirstOnTwoRanks(way, job, change);
    const SizeChoice choice = Choice(way);
    EXPECT_EQ(choice.layers, expected.layers);
    EXPECT_EQ(choice.tokens, expected.tokens);
    EXPECT_EQ(choice.training_flops, expected.training_flops);
    ASSERT_EQ(choice.candidates.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(choice.candidates[i].loss_nats, expected.candidates[i].loss_nats, 1e-4);
    }
    const std::string phase = std::string(way) + "/phase-1";
    EXPECT_EQ(Manifest(phase).updates, 20) << "the optimizer's state goes on";
    EXPECT_NEAR(*Summary(phase).validation_loss_nats, *Summary("one/phase-1").validation_loss_nats,
                1e-3);
  }
}

TEST_F(SizeSearchTest, RefusesPlansThatLeaveBlocksOut) {
  AttemptSpec whole;
  whole.run_dir = root_ + "/refused";
  whole.job = Job();
  whole.plan = engine::TinyPlan("fp32", 4, 1);
  whole.plan.recompute_segment = 2;
  Listener listener(1000);
  engine::HashStore store;
  const auto refused = RunPhase(Env::Posix(), whole, 0, listener, store);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("phases[0]: phases[].search.steps 10 does not go with "
                        "resources.recompute_segment 2"));
}

}  // namespace
}  // namespace weft::trainer
