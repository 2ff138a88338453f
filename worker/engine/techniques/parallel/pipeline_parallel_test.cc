// Pipelines against one rank that has the whole model.
#include "worker/engine/techniques/parallel/pipeline_parallel.h"

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "common/pipeline/simulate.h"
#include "common/spec/shard_ranks.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/mesh_groups.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/engine/testing/many_steps.h"
#include "worker/engine/testing/saved_state.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr AxisSet kTensor = {MeshAxis::kTensor};
constexpr AxisSet kPipeline = {MeshAxis::kPipeline};
constexpr int64_t kSteps = kManyTrainedSteps;
constexpr int64_t kLength = 16;
constexpr int64_t kBatch = 8;

ModelSpec Gpt2Model() {
  ModelSpec spec = TinyModel();
  spec.layers = 5;
  spec.dropout = 0.1;
  spec.attention_dropout = 0.1;
  return spec;
}

ModelSpec LlamaModel(bool untied) {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.layers = 5;
  spec.kv_heads = 1;
  spec.mlp_width = 48;
  spec.untied_classifier = untied;
  return spec;
}

struct Case {
  std::string name;
  ModelSpec model;
  std::string schedule = "1f1b";
  std::vector<int64_t> cut = {3, 2};  ///< Blocks of each stage.
  int64_t chunks = 1;
  int64_t data = 1;
  int64_t tensor = 1;
  std::string policy = "keep";
  std::string precision = "fp32";
  int64_t length = kLength;
  int64_t zero_stage = 0;
  int64_t shard_ranks = 0;

  int64_t stages() const { return static_cast<int64_t>(cut.size()); }
  int64_t pipeline() const { return stages() / chunks; }
  int64_t ranks() const { return pipeline() * data * tensor; }

  JobSpec Job() const {
    JobSpec job = TinyJob(kBatch);
    job.model = model;
    job.train.steps = kSteps;
    job.train.precision = precision;
    job.train.log_every_steps = 3;
    job.train.eval_sequences = 10;
    job.train.gradient_clip_norm = 0.5;
    job.optimizer.learning_rate = 1e-2;
    return job;
  }
  /// The same training on one rank.
  Case Whole() const {
    Case one = *this;
    one.cut = {model.layers};
    one.chunks = one.data = one.tensor = 1;
    one.zero_stage = one.shard_ranks = 0;
    one.schedule = "1f1b";
    return one;
  }
  Plan ThePlan() const {
    Plan plan = TinyPlan(precision, 1, kBatch / data);
    plan.mesh.data = data;
    plan.mesh.tensor = tensor;
    plan.mesh.pipeline = pipeline();
    plan.pipeline_schedule = schedule;
    plan.pipeline_chunks = chunks;
    plan.stage_blocks = cut;
    plan.zero_stage = zero_stage;
    plan.zero_shard_ranks = shard_ranks;
    plan.bucket_bytes = 4000;
    plan.block_memory_policy.assign(static_cast<size_t>(model.layers), policy);
    return plan;
  }
};

/// What a rank's training came to.
struct Outcome {
  std::vector<StepReport> reports;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, Shard> shards;
  std::map<std::string, Shape> shapes;
  int64_t stage_rank = 0;
  int64_t peak_in_flight = 0;
  double to_next = 0, to_previous = 0, from_previous = 0, from_next = 0;
};

/// A rank of a training, or all of it.
struct Rank {
  MeshGroups groups;
  std::optional<TensorParallel> tensor;
  std::unique_ptr<PipelineParallel> pipeline;
  RandomTokens tokens;
  std::optional<TinyRun> run;
  std::unique_ptr<BucketReducer> reducer;
  std::unique_ptr<Trainer> trainer;

  Rank(const Case& c, Collective& world) : tokens(c.model.vocab_size, c.length) {
    const Plan plan = c.ThePlan();
    const MeshLayout layout(plan.mesh);
    auto made = MeshGroups::Make(&world, layout, {kTensor, kGradientAxes, kPipeline});
    WEFT_CHECK(made.ok(), made.status().message());
    groups = *std::move(made);
    ModelOptions options = ModelOptionsOf(plan);
    options.update_rank = layout.CoordinateOf(world.rank(), MeshAxis::kData) % ShardRanks(plan);
    if (Collective* group = groups.Along(kTensor)) {
      tensor.emplace(group);
      options.tensor = &*tensor;
    }
    if (Collective* group = groups.Along(kPipeline)) {
      auto connected = PipelineParallel::New(
          group,
          {c.schedule, c.chunks, !c.model.untied_classifier, FirstTrainedStage(c.model, c.cut)});
      WEFT_CHECK(connected.ok(), connected.status().message());
      pipeline = *std::move(connected);
      auto part = PipelinePartOf(plan, pipeline->rank(), c.model.layers);
      WEFT_CHECK(part.ok(), part.status().message());
      options.pipeline = *part;
    }
    run.emplace(c.model, options);
    auto reduces = NewReducer(run->context, plan, groups.Along(kGradientAxes),
                              &run->model->parameters(), run->model->precision().products);
    WEFT_CHECK(reduces.ok(), reduces.status().message());
    reducer = *std::move(reduces);
    auto trains = Trainer::New(c.Job(), plan,
                               {.context = &run->context,
                                .model = run->model.get(),
                                .train = &tokens,
                                .validation = &tokens,
                                .reducer = reducer.get(),
                                .rank = layout.CoordinateOf(world.rank(), MeshAxis::kData),
                                .tensor = options.tensor,
                                .pipeline = pipeline.get()});
    WEFT_CHECK(trains.ok(), trains.status().message());
    trainer = *std::move(trains);
  }
};

Outcome Train(const Case& c, Collective& world) {
  Rank rank(c, world);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    auto report = rank.trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    outcome.reports.push_back(*report);
  }
  if (rank.pipeline != nullptr) {
    using Direction = PipelineParallel::Direction;
    outcome.stage_rank = rank.pipeline->rank();
    outcome.peak_in_flight = rank.trainer->peak_in_flight();
    outcome.to_next = rank.pipeline->BytesOn(Direction::kToNext);
    outcome.to_previous = rank.pipeline->BytesOn(Direction::kToPrevious);
    outcome.from_previous = rank.pipeline->BytesOn(Direction::kFromPrevious);
    outcome.from_next = rank.pipeline->BytesOn(Direction::kFromNext);
  }
  auto evaluation = rank.trainer->Evaluate();
  WEFT_CHECK(evaluation.ok(), evaluation.status().message());
  outcome.evaluation = evaluation->loss;
  const ParameterSet& parameters = rank.run->model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    outcome.values[name] = ValuesOf(parameters.value(i));
    outcome.shards[name] = parameters[i].shard;
    outcome.shapes[name] = parameters[i].shape;
  }
  return outcome;
}

std::vector<Outcome> TrainOn(const Case& c) {
  std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks()));
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(20), [&](Collective& world) {
    outcomes[static_cast<size_t>(world.rank())] = Train(c, world);
  });
  return outcomes;
}

std::vector<float> Part(const std::vector<float>& whole, const Shard& shard, const Shape& shape) {
  std::vector<float> part(static_cast<size_t>(shape.Elements()));
  shard.ForEachRun(shape, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(whole.begin() + from, count, part.begin() + to);
  });
  return part;
}

/// Largest difference, in units of the largest magnitude of `truth`.
double Distance(const std::vector<float>& values, const std::vector<float>& truth) {
  double largest = 0, difference = 0;
  EXPECT_EQ(values.size(), truth.size());
  for (size_t i = 0; i < std::min(values.size(), truth.size()); ++i) {
    largest = std::max<double>(largest, std::fabs(truth[i]));
    difference = std::max<double>(difference, std::fabs(values[i] - truth[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

void ExpectFollows(const Case& c, const std::vector<Outcome>& ranks, const Outcome& whole) {
  std::map<std::string, std::vector<float>> seen;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const Outcome& own = ranks[rank];
    for (size_t step = 0; step < kSteps; ++step) {
      const StepReport &report = own.reports[step], &truth = whole.reports[step];
      EXPECT_NEAR(report.loss, truth.loss, 1e-5 * truth.loss) << step;
      EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, 1e-4 * truth.gradient_norm);
      EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
      EXPECT_EQ(report.gradient_norm, ranks[0].reports[step].gradient_norm);
      EXPECT_EQ(report.targets, truth.targets);
      ASSERT_EQ(report.norms.size(), truth.norms.size());
      for (size_t g = 0; g < truth.norms.size(); ++g) {
        EXPECT_EQ(report.norms[g].group, truth.norms[g].group);
        EXPECT_NEAR(report.norms[g].parameter, truth.norms[g].parameter,
                    1e-4 * truth.norms[g].parameter);
      }
    }
    EXPECT_NEAR(own.evaluation, whole.evaluation, 1e-5 * whole.evaluation);
    for (const auto& [name, values] : own.values) {
      SCOPED_TRACE(name);
      const std::vector<float> truth =
          Part(whole.values.at(name), own.shards.at(name), own.shapes.at(name));
      EXPECT_LT(Distance(values, truth), 2e-3);
      if (!own.shards.at(name).whole()) continue;
      const auto [it, added] = seen.emplace(name, values);
      EXPECT_EQ(values, it->second) << "bit for bit wherever it is, tied tables too";
    }
  }
  EXPECT_EQ(c.tensor > 1 || seen.size() == whole.values.size(), true)
      << "every parameter somewhere";
}

/// What the stages send each other in all steps, and how many micro-batches they keep.
void ExpectAsPlanned(const Case& c, const std::vector<Outcome>& ranks) {
  auto schedule = NamedSchedule(c.schedule, c.pipeline(), c.chunks, kBatch / c.data);
  ASSERT_TRUE(schedule.ok());
  const PipelineCosts alike{std::vector<StageCost>(c.cut.size(), StageCost{1, 1, 1, 1}), 0};
  const auto timeline = SimulatePipeline(*schedule, alike);
  ASSERT_TRUE(timeline.ok());
  const double tensor = static_cast<double>(kLength * c.model.width) *
                        static_cast<double>(c.precision == "fp32" ? 4 : 2);
  const double once = tensor * static_cast<double>(kSteps * kBatch / c.data);
  for (const Outcome& own : ranks) {
    const int64_t rank = own.stage_rank;
    const auto chunks = static_cast<double>(c.chunks);
    EXPECT_EQ(static_cast<double>(own.peak_in_flight),
              timeline->ranks[static_cast<size_t>(rank)].peak_activations);
    const double not_first = chunks - (rank == 0 ? 1 : 0);
    const double not_last = chunks - (rank + 1 == c.pipeline() ? 1 : 0);
    EXPECT_EQ(own.to_next, not_last * once);
    EXPECT_EQ(own.from_previous, not_first * once);
    // Gradients go back to the first stage that has anything to train.
    const int64_t first = FirstTrainedStage(c.model, c.cut);
    double sends = 0, gets = 0;
    for (int64_t stage = rank; stage < c.stages(); stage += c.pipeline()) {
      sends += stage > first ? 1 : 0;
      gets += stage >= first && stage + 1 < c.stages() ? 1 : 0;
    }
    EXPECT_EQ(own.from_next, gets * once);
    EXPECT_EQ(own.to_previous, sends * once);
  }
}

/// Pipeline stages, tensor-parallel ranks, and replicas that shard updates.
Case AllKinds() {
  ModelSpec model = Gpt2Model();
  model.attention_dropout = 0;  // which makes the fourth digit of a last bit here
  return {"gpt2, all kinds of ranks", model, "1f1b", {3, 2}, 1, 2, 2, "keep", "fp32", kLength, 1};
}

ModelSpec Freezing(ModelSpec model, std::vector<std::string> patterns) {
  model.freeze = std::move(patterns);
  return model;
}

/// Tables, also one that classifies, and the first blocks.
ModelSpec FrozenBelow(ModelSpec model, int64_t blocks) {
  model.freeze = {"transformer.w*"};
  for (int64_t block = 0; block < blocks; ++block) {
    model.freeze.push_back("transformer.h." + std::to_string(block) + ".*");
  }
  return model;
}

TEST(Pipeline, TrainingFollowsThatOfOneRank) {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel(true), tied = LlamaModel(false);
  const std::vector<Case> cases = {
      {"gpt2, gpipe", gpt2, "gpipe", {2, 3}},
      {"gpt2, four ranks", gpt2, "1f1b", {2, 1, 1, 1}},
      {"gpt2, interleaved", gpt2, "interleaved", {1, 1, 2, 1}, 2},
      {"gpt2, replicas, recomputed", gpt2, "1f1b", {3, 2}, 1, 2, 1, "recompute"},
      {"llama, 1f1b", llama, "1f1b", {2, 3}},
      {"llama, zero bubble, four ranks", tied, "zero_bubble", {1, 1, 2, 1}},
      {"llama, interleaved, shared matrices", tied, "interleaved", {1, 1, 2, 1}, 2, 1, 2},
      AllKinds(),
      {"gpt2, groups that shard updates",
       gpt2,
       "zero_bubble",
       {3, 2},
       1,
       4,
       1,
       "keep",
       "fp32",
       kLength,
       1,
       2},
      // Stages that have nothing to train, or no gradients to pass on.
      {"gpt2, frozen, four ranks", FrozenBelow(gpt2, 4), "1f1b", {2, 1, 1, 1}},
      {"gpt2, frozen, gpipe", FrozenBelow(gpt2, 5), "gpipe", {2, 3}},
      {"gpt2, frozen, zero bubble", FrozenBelow(gpt2, 2), "zero_bubble", {1, 2, 2}},
      {"gpt2, frozen, interleaved", FrozenBelow(gpt2, 2), "interleaved", {1, 1, 2, 1}, 2},
      {"gpt2, frozen, recomputed", FrozenBelow(gpt2, 2), "1f1b", {3, 2}, 1, 1, 1, "recompute"},
      {"gpt2, frozen, replicas that shard updates",
       FrozenBelow(gpt2, 3),
       "1f1b",
       {3, 2},
       1,
       2,
       1,
       "keep",
       "fp32",
       kLength,
       1},
      {"gpt2, frozen table", FrozenBelow(gpt2, 0), "1f1b", {3, 2}},
      {"gpt2, frozen ends", Freezing(gpt2, {"*wte*", "*.h.4.*", "*ln_f*", "*.h.1.attn.*"})}};
  std::map<std::string, Outcome> wholes;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Case one = c.Whole();
    if (c.tensor > 1 && c.model.family == "llama") one.model.kv_heads = 2;
    Case many = c;
    many.model = one.model;
    std::string key = one.model.family + std::to_string(one.model.untied_classifier) +
                      std::to_string(one.model.kv_heads) +
                      std::to_string(AttentionDropoutOf(one.model));
    for (const std::string& pattern : one.model.freeze) key += pattern;
    if (!wholes.contains(key)) wholes[key] = TrainOn(one).front();
    const std::vector<Outcome> ranks = TrainOn(many);
    ExpectFollows(many, ranks, wholes[key]);
    ExpectAsPlanned(many, ranks);
  }
}

TEST(Pipeline, WeightGradientsThatWaitAreTheSameBits) {
  for (const std::string policy : {"keep", "attention", "recompute"}) {
    Case c{"zero bubble", Gpt2Model(), "1f1b"};
    c.policy = policy;
    const std::vector<Outcome> at_once = TrainOn(c);
    c.schedule = "zero_bubble";
    const std::vector<Outcome> later = TrainOn(c);
    for (size_t rank = 0; rank < later.size(); ++rank) {
      EXPECT_EQ(later[rank].values, at_once[rank].values);
    }
  }
}

/// What all ranks save after two steps, and after those of `start` on each rank.
SavedState StateOf(const Case& c, const std::function<void(Trainer&, int rank)>& start) {
  SavedState all;
  std::mutex mutex;
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(20), [&](Collective& world) {
    Rank rank(c, world);
    start(*rank.trainer, world.rank());
    const std::lock_guard lock(mutex);
    all.Add(rank.trainer->StateTensors());
  });
  return all;
}

TEST(Pipeline, StateIsReadByOtherMeshesBitForBit) {
  const Case stages{"stages", Gpt2Model(), "1f1b", {3, 2}};
  for (const Case& c : {stages, AllKinds()}) {
    SCOPED_TRACE(c.name);
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/mesh").ok());
    ASSERT_TRUE(env.CreateDirs("/whole").ok());
    CheckpointManifest of_mesh, of_whole;
    std::mutex mutex;
    const auto save = [&](Trainer& trainer, int rank, const std::string& folder,
                          CheckpointManifest& manifest) {
      std::vector<NamedTensor> tensors = trainer.StateTensors();
      std::erase_if(tensors, [](const NamedTensor& tensor) { return !tensor.saved; });
      const std::lock_guard lock(mutex);
      auto file = WriteTensorFile(env, folder, rank, c.ranks(), tensors);
      ASSERT_TRUE(file.ok()) << file.status().message();
      manifest.files.push_back(*file);
    };
    const auto load = [&](Trainer& trainer, const std::string& folder,
                          const CheckpointManifest& manifest) {
      const std::lock_guard lock(mutex);
      const Status loaded =
          LoadTensors(env, folder, manifest, trainer.StateTensors(), ExtraTensors::kIgnore);
      ASSERT_TRUE(loaded.ok()) << loaded.message();
    };
    const SavedState all = StateOf(c, [&](Trainer& trainer, int rank) {
      for (int step = 0; step < 2; ++step) ASSERT_TRUE(trainer.Step().ok());
      save(trainer, rank, "/mesh", of_mesh);
    });
    // Replicas, as one rank, have the whole state.
    const SavedState whole = StateOf(c.Whole(), [&](Trainer& trainer, int rank) {
      load(trainer, "/mesh", of_mesh);
      save(trainer, rank, "/whole", of_whole);
    });
    EXPECT_EQ(whole.tensors, all.tensors);
    const SavedState again =
        StateOf(c, [&](Trainer& trainer, int) { load(trainer, "/whole", of_whole); });
    EXPECT_EQ(again.tensors, all.tensors);
    EXPECT_EQ(again.parts, all.parts) << "each tensor is saved once, the tied table, too";
  }
}

TEST(Pipeline, ARankThatIsLostStopsAllOthersWhichCanNameIt) {
  const Case stages{"stages", Gpt2Model(), "1f1b", {2, 1, 1, 1}};
  RunRanks(4, std::chrono::seconds(20), [&](Collective& world) {
    Rank rank(stages, world);
    ASSERT_TRUE(rank.trainer->Step().ok());
    if (world.rank() == 2) {
      // As when its process ends: all connections go.
      rank.pipeline->Abort();
      rank.groups.Abort();
      return;
    }
    EXPECT_EQ(rank.trainer->Step().status().code(), StatusCode::kUnavailable);
    for (int wait = 0; wait < 500 && world.Health().ok(); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_THAT(world.Health().message(), testing::HasSubstr("rank 2 "));
  });
}

TEST(Pipeline, FrozenStagesTakeTheMemoryThatIsPredicted) {
  for (const int64_t frozen : {2, 3}) {
    for (const std::string policy : {"keep", "recompute"}) {
      SCOPED_TRACE(policy + " below " + std::to_string(frozen));
      Case c{"memory", FrozenBelow(Gpt2Model(), frozen), "1f1b", {3, 2}};
      c.model.width = 128;
      c.model.context = c.length = 128;
      c.model.dropout = 0;
      c.policy = policy;
      std::vector<MemoryBreakdown> measured(2);
      RunRanks(2, std::chrono::seconds(20), [&](Collective& world) {
        Rank rank(c, world);
        ASSERT_TRUE(rank.trainer->Step().ok());
        auto report = rank.trainer->Step();
        ASSERT_TRUE(report.ok());
        measured[static_cast<size_t>(world.rank())] = report->peak_memory;
      });
      const MemoryInputs inputs = MemoryInputsOf(c.Job(), c.ThePlan(), {});
      const auto steps = NamedSchedule(c.schedule, 2, 1, kBatch);
      ASSERT_TRUE(steps.ok());
      const auto predicted = PredictPipelineRanks(inputs, c.cut, *steps);
      for (size_t rank = 0; rank < 2; ++rank) {
        SCOPED_TRACE(rank);
        const MemoryBreakdown &own = measured[rank], &told = predicted[rank];
        const auto near = [](int64_t a, int64_t b, double most) {
          EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), most);
        };
        EXPECT_EQ(own.gradients_bytes == 0, rank == 0 && frozen == 3);
        near(told.gradients_bytes, own.gradients_bytes,
             0.01 * static_cast<double>(own.gradients_bytes));
        near(told.optimizer_bytes, own.optimizer_bytes,
             0.01 * static_cast<double>(own.optimizer_bytes));
        // Except two messages, which the other rank may have taken or not.
        near(told.activations_bytes, own.activations_bytes,
             2 * 4 * static_cast<double>(c.length * c.model.width));
      }
    }
  }
}

TEST(Pipeline, InHalfPrecisionFollowsThatOfOneRank) {
  for (const std::string precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    Case c{"mixed", LlamaModel(false), "1f1b", {3, 2}};
    c.precision = precision;
    const Outcome whole = TrainOn(c.Whole()).front();
    const std::vector<Outcome> ranks = TrainOn(c);
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(ranks[0].reports[step].loss, whole.reports[step].loss, 2e-2);
      EXPECT_EQ(ranks[0].reports[step].loss, ranks[1].reports[step].loss);
      EXPECT_EQ(ranks[0].reports[step].loss_scale, whole.reports[step].loss_scale);
    }
    ExpectAsPlanned(c, ranks);
  }
}

}  // namespace
}  // namespace weft::engine
