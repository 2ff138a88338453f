// Layer sampling against plain networks whose layers have copies of the blocks.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/step_extent.h"
#include "common/model/technique_cost.h"
#include "worker/engine/techniques/layer_sampling/layer_sampling_cost.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kBlocks = 2;
constexpr int64_t kMost = 6;

JobSpec Job() {
  JobSpec job = TinyJob(4);
  job.model.layers = kBlocks;
  job.train.sampled_layers = kMost;
  return job;
}

ModelOptions Options(const JobSpec& job) {
  return ModelOptionsOf(TinyPlan("fp32"), job.train);
}

int64_t LayersAt(int64_t step) {
  return LayersOfStep(kBlocks, kMost, Job().train.seed, step);
}

/// The first step that runs this many layers.
int64_t StepWith(int64_t layers) {
  int64_t step = 0;
  while (LayersAt(step) != layers) ++step;
  return step;
}

Batch Tokens() {
  return *RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(0, 0, 4);
}

void Randomize(TinyRun& run) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    PhiloxStream random(PhiloxKey{3, 0, static_cast<uint32_t>(p)});
    const TensorView view = parameters.value(p);
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      view.As<float>()[i] += static_cast<float>(0.15 * random.Normal());
    }
  }
  WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
}

/// The name that a parameter of layer l of `layers` has in the network of blocks.
std::string Shared(std::string name, int64_t layers) {
  const std::string prefix = "transformer.h.";
  if (!name.starts_with(prefix)) return name;
  const size_t end = name.find('.', prefix.size());
  const int64_t layer = std::stoll(name.substr(prefix.size(), end - prefix.size()));
  return prefix + std::to_string(layer * kBlocks / layers) + name.substr(end);
}

/// Loss and gradients, by the names of the shared blocks, of a plain network of this many layers.
struct Unrolled {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;

  Unrolled(TinyRun& shared, int64_t layers) {
    ModelSpec spec = TinyModel();
    spec.layers = layers;
    TinyRun run(spec, Options(TinyJob()));
    ParameterSet& own = run.model->parameters();
    const ParameterSet& from = shared.model->parameters();
    for (int64_t p = 0; p < own.size(); ++p) {
      const TensorView source = from.value(from.Find(Shared(own[p].name, layers)).value());
      std::memcpy(own.value(p).data, source.data, source.Bytes());
    }
    WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
    loss = run.Differentiate(Tokens());
    for (int64_t p = 0; p < own.size(); ++p) {
      std::vector<float>& sum = gradients[Shared(own[p].name, layers)];
      const std::vector<float> values = ValuesOf(own.gradient(p));
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
};

// Checks twelve layers against the distributions that the paper's code has.
TEST(LayerSampling, DrawsFewLayersMostOften) {
  struct Truth {
    int64_t blocks;
    double mean, of_blocks, of_all;
  };
  for (const Truth& truth :
       {Truth{1, 1.77, 0.74, 0.002}, {3, 4.23, 0.64, 0.017}, {6, 7.14, 0.65, 0.067}}) {
    constexpr int64_t kDraws = 200000;
    double sum = 0, few = 0, all = 0;
    for (int64_t step = 0; step < kDraws; ++step) {
      const int64_t layers = LayersOfStep(truth.blocks, 12, 1, step);
      ASSERT_GE(layers, truth.blocks);
      ASSERT_LE(layers, 12);
      sum += static_cast<double>(layers);
      few += layers == truth.blocks ? 1 : 0;
      all += layers == 12 ? 1 : 0;
    }
    EXPECT_NEAR(sum / kDraws, truth.mean, 0.02) << truth.blocks;
    EXPECT_NEAR(few / kDraws, truth.of_blocks, 0.01) << truth.blocks;
    EXPECT_NEAR(all / kDraws, truth.of_all, 0.005) << truth.blocks;
  }
  EXPECT_EQ(SampledLayers(3, 12, 0), 12);
  EXPECT_EQ(SampledLayers(3, 12, 1), 3);
}

TEST(LayerSampling, AStepWithAsManyLayersAsBlocksIsPlainBitForBit) {
  TinyRun plain(TinyModel(), Options(TinyJob())), sampled(Job().model, Options(Job()));
  Randomize(plain);
  Randomize(sampled);
  sampled.context.step = StepWith(kBlocks);
  EXPECT_EQ(sampled.Differentiate(Tokens()), plain.Differentiate(Tokens()));
  EXPECT_EQ(sampled.Gradients(), plain.Gradients());
}

// Numbers of layers that are no multiple of the blocks, too.
TEST(LayerSampling, LayersShareBlocksWithTheirNeighbours) {
  TinyRun run(Job().model, Options(Job()));
  Randomize(run);
  for (int64_t layers = kBlocks; layers <= kMost; ++layers) {
    SCOPED_TRACE(layers);
    run.context.step = StepWith(layers);
    const double loss = run.Differentiate(Tokens());
    const Unrolled truth(run, layers);
    EXPECT_NEAR(loss, truth.loss, 1e-5 * truth.loss);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t p = 0; p < parameters.size(); ++p) {
      EXPECT_LT(Distance(ValuesOf(parameters.gradient(p)), truth.gradients.at(parameters[p].name)),
                2e-5)
          << parameters[p].name;
    }
  }
}

TEST(LayerSampling, EvaluationRunsEachBlockOnce) {
  TinyRun plain(TinyModel(), Options(TinyJob())), sampled(Job().model, Options(Job()));
  sampled.context.step = StepWith(kMost);
  EXPECT_EQ(sampled.Loss(Tokens()), plain.Loss(Tokens()));
  EXPECT_EQ(sampled.Logits(Tokens()), plain.Logits(Tokens()));
}

TEST(LayerSampling, EncodersSampleToo) {
  ModelSpec spec = TinyModel();
  spec.family = "vit";
  spec.image_size = 16;
  spec.patch_size = 8;
  spec.classes = 4;
  TinyRun plain(spec, Options(TinyJob())), sampled(spec, Options(Job()));
  const Batch images = *NoiseImages(spec).Get(0, 0, 4);
  sampled.context.step = StepWith(kBlocks);
  EXPECT_EQ(sampled.Differentiate(images), plain.Differentiate(images));
  sampled.context.step = StepWith(kMost);
  EXPECT_NE(sampled.Differentiate(images), plain.Differentiate(images));
}

TEST(LayerSampling, RecomputationGivesTheSameBits) {
  for (const char* policy : {"recompute", "attention"}) {
    TinyRun kept(Job().model, Options(Job()));
    ModelOptions options = Options(Job());
    options.block_memory_policy = std::vector<std::string>(kMost, policy);
    TinyRun other(Job().model, options);
    for (int64_t layers = kBlocks; layers <= kMost; ++layers) {
      kept.context.step = other.context.step = StepWith(layers);
      EXPECT_EQ(other.Differentiate(Tokens()), kept.Differentiate(Tokens()));
      EXPECT_EQ(other.Gradients(), kept.Gradients());
    }
  }
}

TEST(LayerSampling, ARestoredStateGoesOnBitForBit) {
  const JobSpec job = Job();
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  TinyTraining original(job, TinyPlan("bf16", 2, 2), tokens);
  for (int i = 0; i < 3; ++i) original.Step();
  TinyTraining copy(job, TinyPlan("bf16", 2, 2), tokens);
  const auto from = original.trainer->StateTensors(), to = copy.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(copy.Step().loss, original.Step().loss);
  EXPECT_EQ(copy.Parameters(), original.Parameters());
}

TEST(LayerSampling, MeshesTrainAsOneRankDoes) {
  const std::pair<const char*, void (*)(Plan&)> ways[] = {
      {"data 4", [](Plan& p) { p.mesh.data = 4; }},
      {"zero 1", [](Plan& p) { p.mesh.data = 2, p.zero_stage = 1; }},
      {"zero 3, recomputed",
       [](Plan& p) {
         p.mesh.data = 2;
         p.zero_stage = 3;
         p.block_memory_policy = std::vector<std::string>(kMost, "recompute");
       }},
      {"tensor 2 with sequence x data 2",
       [](Plan& p) {
         p.mesh.data = p.mesh.tensor = 2;
         p.sequence_parallel = true;
       }},
      {"context 2", [](Plan& p) { p.mesh.context = 2; }},
  };
  for (const auto& [name, change] : ways) {
    SCOPED_TRACE(name);
    MeshCase c{Job(), TinyPlan("fp32", 2, 1)};
    c.job.train.global_batch = 8;
    c.job.train.steps = 6;
    c.job.train.gradient_clip_norm = 0.5;
    change(c.plan);
    c.plan.accumulation_steps = 8 / c.plan.micro_batch / c.plan.mesh.data;
    ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole())[0], 1e-5, 1e-4);
  }
}

TEST(LayerSampling, TheWorkOfTheLayersOfEachStepIsCounted) {
  JobSpec job = Job();
  job.train.steps = 300;
  const auto of_layers = [&](int64_t layers) {
    ModelSpec spec = job.model;
    spec.layers = layers;
    return TrainingFlopsPerToken(ModelShape(spec), 16);
  };
  double flops = 0;
  for (int64_t step = 0; step < job.train.steps; ++step) flops += of_layers(LayersAt(step));
  EXPECT_NEAR(MeanFlopsPerToken(job, job.train.steps), flops / 300, 1e-9 * flops);
  const MeanStep mean = MeanStepOf(job);
  EXPECT_EQ(mean.tokens, 1);
  EXPECT_NEAR(mean.flops, flops / 300 / of_layers(kMost), 1e-9);

  // And it is what the engine does.
  TinyRun run(job.model, Options(job));
  const auto counted = [&](int64_t step) {
    run.context.step = step;
    Profiler profiler;
    run.context.profiler = &profiler;
    run.Differentiate(Tokens());
    run.context.profiler = nullptr;
    double sum = 0;
    for (const auto& [name, entry] : profiler.entries()) sum += entry.flops;
    return sum;
  };
  const double two = counted(StepWith(2)), three = counted(StepWith(3)), six = counted(StepWith(6));
  EXPECT_NEAR((six - two) / (three - two), 4, 1e-9);
}

TEST(LayerSampling, ThereIsMemoryForTheStepWithMostLayers) {
  for (const int64_t recomputed : {int64_t{0}, kMost}) {
    JobSpec job = Job();
    job.train.global_batch = 8;
    job.model.width = 128;
    job.model.context = 64;
    Plan plan = TinyPlan("fp32", 4, 2);
    plan.block_memory_policy = BlockPolicies(kMost, recomputed);
    RandomTokens tokens(job.model.vocab_size, job.model.context);
    TinyTraining run(job, plan, tokens);
    const int64_t last = StepWith(kMost);
    TrainCounters counters = run.trainer->counters();
    counters.step = std::max<int64_t>(last - 1, 0);  // another one comes before the one measured
    ASSERT_TRUE(run.trainer->Restored(counters).ok());
    MemoryBreakdown measured;
    while (run.trainer->counters().step <= last) measured = run.Step().peak_memory;
    const MemoryBreakdown predicted = PredictMemory(MemoryInputsOf(job, plan, {}));
    EXPECT_NEAR(static_cast<double>(measured.activations_bytes) /
                    static_cast<double>(predicted.activations_bytes),
                1, 0.03);
    EXPECT_EQ(measured.parameters_bytes, predicted.parameters_bytes);
    EXPECT_EQ(measured.gradients_bytes, predicted.gradients_bytes);
  }
}

TEST(LayerSampling, RefusesNumbersThatTheBlocksDoNotServeEqually) {
  const auto error = [](int64_t sampled) {
    JobSpec job = Job();
    job.data.train = {"a.txt"};
    job.train.sampled_layers = sampled;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error(0), "");
  EXPECT_EQ(error(kBlocks), "") << "nothing is left to draw";
  EXPECT_EQ(error(kMost), "");
  EXPECT_THAT(error(5), testing::HasSubstr("must be a multiple of model.layers 2"));
  EXPECT_THAT(error(1), testing::HasSubstr("must be a multiple of model.layers 2"));
}

}  // namespace
}  // namespace weft::engine
