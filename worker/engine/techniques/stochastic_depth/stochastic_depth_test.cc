// Stochastic depth against plain networks whose branches are multiplied by what was drawn.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/remat_schedule.h"
#include "common/model/technique_cost.h"
#include "common/rng.h"
#include "worker/engine/techniques/stochastic_depth/stochastic_depth_cost.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kSequences = 4;
constexpr double kRate = 0.6;
const ModelOptions kFloat32{&kFp32Precision, true, {}};

ModelSpec Spec(const std::string& mode, double rate = kRate, const std::string& decay = "linear") {
  ModelSpec spec = TinyModel();
  spec.layers = kLayers;
  spec.stochastic_depth = {rate, decay, mode};
  return spec;
}

ModelSpec Plain() {
  return Spec("batch", 0);
}

/// What ends the branches, two a layer.
std::vector<std::string> Branches() {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string block = "transformer.h." + std::to_string(layer);
    names.push_back(block + ".attn.c_proj");
    names.push_back(block + ".mlp.c_proj");
  }
  return names;
}

/// What branch `b` is multiplied by in `step`, for a sequence of the batch.
double FactorOf(const StochasticDepthSpec& spec, size_t b, int64_t step, int64_t sequence) {
  const std::string site = Branches()[b] + "/stochastic_depth";
  const auto layer = static_cast<double>(b / 2 + 1);
  const double skip = spec.decay == "uniform" ? spec.rate : spec.rate * layer / kLayers;
  const PhiloxKey key{0, static_cast<uint32_t>(step), SiteHash(site.c_str())};
  const int64_t draw = spec.mode == "batch" ? 0 : sequence;
  return UniformFloat(Philox(key, static_cast<uint64_t>(draw)).v[0]) < skip ? 0 : 1 / (1 - skip);
}

/// The probability that progressive layer dropping computes layer `layer`, from 1, in `step` of
/// `steps`, by the formula of its paper.
double KeptByThePaper(const StochasticDepthSpec& spec, int64_t layer, int64_t step, int64_t steps) {
  const double last = 1 - spec.rate;
  const double progress = static_cast<double>(step) / static_cast<double>(steps);
  const double theta = (1 - last) * std::exp(-spec.gamma * progress) + last;
  return 1 - (1 - theta) * static_cast<double>(layer) / kLayers;
}

/// And what both branches of the layer are multiplied by.
double LayerFactor(const StochasticDepthSpec& spec, int64_t layer, int64_t step, int64_t steps) {
  const double kept = KeptByThePaper(spec, layer, step, steps);
  const std::string site = "layer " + std::to_string(layer - 1) + "/stochastic_depth";
  const PhiloxKey key{0, static_cast<uint32_t>(step), SiteHash(site.c_str())};
  return UniformFloat(Philox(key, 0).v[0]) < 1 - kept ? 0 : 1 / kept;
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

/// A plain network whose last products of the branches are multiplied: its loss at some sequences,
/// and its gradient with respect to the products as they were.
struct Multiplied {
  double loss = 0;
  std::vector<float> gradients;

  Multiplied(const Batch& batch, const std::vector<double>& factors) {
    TinyRun run(Plain(), kFloat32);
    Randomize(run);
    ParameterSet& parameters = run.model->parameters();
    const auto multiply = [&](const auto& view_of) {
      for (size_t b = 0; b < factors.size(); ++b) {
        for (const char* part : {".weight", ".bias"}) {
          const TensorView view = view_of(parameters.Find(Branches()[b] + part).value());
          for (int64_t i = 0; i < view.shape.Elements(); ++i) {
            view.template As<float>()[i] *= static_cast<float>(factors[b]);
          }
        }
      }
    };
    multiply([&](int64_t index) { return parameters.value(index); });
    WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
    loss = run.Differentiate(batch);
    multiply([&](int64_t index) { return parameters.gradient(index); });
    gradients = run.Gradients();
  }
};

Batch BatchOfStep(int64_t first, int64_t count) {
  return *RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(0, first, count);
}

void ExpectNear(const std::vector<float>& values, const std::vector<float>& truth) {
  EXPECT_LT(Distance(values, truth), 2e-5);
}

TEST(StochasticDepthTest, BranchesAreMultipliedByWhatWasDrawnForTheStep) {
  const ModelSpec spec = Spec("batch");
  TinyRun run(spec, kFloat32);
  Randomize(run);
  const Batch batch = BatchOfStep(0, kSequences);
  int64_t skipped = 0;
  for (int64_t step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    run.context.step = step;
    std::vector<double> factors;
    for (size_t b = 0; b < Branches().size(); ++b) {
      factors.push_back(FactorOf(spec.stochastic_depth, b, step, 0));
      skipped += factors.back() == 0 ? 1 : 0;
    }
    const double loss = run.Differentiate(batch);
    const Multiplied truth(batch, factors);
    EXPECT_NEAR(loss, truth.loss, 1e-5 * truth.loss);
    ExpectNear(run.Gradients(), truth.gradients);
  }
  EXPECT_GT(skipped, 4);
  EXPECT_LT(skipped, 24);
}

// The rate grows from 0, and its mean over all steps is what the planner counts.
TEST(StochasticDepthTest, ProgressiveLayerDroppingFollowsItsFormula) {
  StochasticDepthSpec spec{.rate = 0.5, .gamma = 100};
  constexpr int64_t kSteps = 100000;
  EXPECT_EQ(SkipProbability(spec, 11, 12, ShareOfRate(spec, 0, kSteps)), 0);
  // The paper has keep(t) = (1 - 0.5) exp(-0.001 t) + 0.5 in the last layer.
  const double keep = 1 - SkipProbability(spec, 11, 12, ShareOfRate(spec, 700, kSteps));
  EXPECT_NEAR(keep, 0.5 * std::exp(-0.7) + 0.5, 1e-12);
  double sum = 0;
  for (int64_t step = 0; step < kSteps; ++step) sum += ShareOfRate(spec, step, kSteps);
  EXPECT_NEAR(MeanShareOfRate(spec), sum / kSteps, 1e-5);
  ModelSpec model = Spec("batch");
  const double whole = ComputedSharesOf(model).Mean();
  model.stochastic_depth.gamma = 100;
  EXPECT_NEAR(1 - ComputedSharesOf(model).Mean(), (1 - whole) * 0.99, 1e-6);
}

TEST(StochasticDepthTest, ProgressiveLayerDroppingMultipliesLayersByTheFactorsOfItsPaper) {
  JobSpec job = TinyJob();
  job.train.steps = 50;
  job.model = Spec("batch");
  job.model.stochastic_depth.unit = "layer";
  job.model.stochastic_depth.gamma = 5;
  const StochasticDepthSpec& spec = job.model.stochastic_depth;
  TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32"), job.train));
  Randomize(run);
  const Batch batch = BatchOfStep(0, kSequences);
  int64_t skipped = 0, layers = 0;
  for (int64_t step = 0; step < job.train.steps; step += 5) {
    SCOPED_TRACE(step);
    run.context.step = step;
    std::vector<double> factors;
    for (int64_t layer = 1; layer <= kLayers; ++layer, ++layers) {
      factors.insert(factors.end(), 2, LayerFactor(spec, layer, step, job.train.steps));
      skipped += factors.back() == 0 ? 1 : 0;
    }
    const double loss = run.Differentiate(batch);
    const Multiplied truth(batch, factors);
    EXPECT_NEAR(loss, truth.loss, 1e-5 * truth.loss);
    ExpectNear(run.Gradients(), truth.gradients);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, layers);
}

// Over the steps of a whole training: as many layers are computed as the probabilities add up to,
// and their factors are 1 on average, which is what evaluation computes.
TEST(StochasticDepthTest, ProgressiveLayerDroppingKeepsTheExpectation) {
  constexpr int64_t kSteps = 8000;
  StochasticDepthSpec spec{.rate = 0.5, .unit = "layer", .gamma = 100};
  for (int64_t layer = 1; layer <= kLayers; ++layer) {
    double computed = 0, expected = 0, sum = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double factor = LayerFactor(spec, layer, step, kSteps);
      computed += factor > 0 ? 1 : 0;
      expected += KeptByThePaper(spec, layer, step, kSteps);
      sum += factor;
      const double skip =
          SkipProbability(spec, layer - 1, kLayers, ShareOfRate(spec, step, kSteps));
      ASSERT_NEAR(1 - skip, KeptByThePaper(spec, layer, step, kSteps), 1e-12);
    }
    EXPECT_NEAR(computed / expected, 1, 0.05) << layer;
    EXPECT_NEAR(sum / kSteps, 1, 0.05) << layer;
  }
}

// Both branches of a layer are skipped by one draw; the first step skips nothing, bit for bit.
TEST(StochasticDepthTest, LayersAreSkippedAsAWhole) {
  JobSpec job = TinyJob();
  job.model = Spec("batch", 0.9, "uniform");
  job.model.stochastic_depth.unit = "layer";
  job.train.steps = 8;
  const auto losses = [](const JobSpec& of) {
    RandomTokens tokens(of.model.vocab_size, of.model.context);
    TinyTraining run(of, TinyPlan("fp32"), tokens);
    std::vector<double> of_steps;
    while (!run.trainer->finished()) of_steps.push_back(run.Step().loss);
    return of_steps;
  };
  // Where a branch alone is left, its part of the gradient is, too.
  TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32"), job.train));
  Randomize(run);
  const Batch batch = BatchOfStep(0, kSequences);
  int64_t computed = 0;
  for (int64_t step = 0; step < 6; ++step) {
    run.context.step = step;
    (void)run.Differentiate(batch);
    const ParameterSet& parameters = run.model->parameters();
    const auto has_gradient = [&](const std::string& name) {
      const auto values = ValuesOf(parameters.gradient(parameters.Find(name + ".weight").value()));
      return std::any_of(values.begin(), values.end(), [](float v) { return v != 0; });
    };
    for (size_t b = 0; b < Branches().size(); b += 2) {
      EXPECT_EQ(has_gradient(Branches()[b]), has_gradient(Branches()[b + 1])) << step << " " << b;
      computed += has_gradient(Branches()[b]) ? 1 : 0;
    }
  }
  EXPECT_GT(computed, 0);
  EXPECT_LT(computed, 6 * kLayers);
  const std::vector<double> whole = [&] {
    JobSpec plain = job;
    plain.model.stochastic_depth = {};
    return losses(plain);
  }();
  job.model.stochastic_depth.gamma = 100;
  const std::vector<double> progressive = losses(job);
  EXPECT_EQ(progressive[0], whole[0]);
  EXPECT_NE(progressive[1], whole[1]);
}

TEST(StochasticDepthTest, SequencesHaveBranchesOfTheirOwn) {
  for (const char* decay : {"linear", "uniform"}) {
    const ModelSpec spec = Spec("sample", kRate, decay);
    TinyRun run(spec, kFloat32);
    Randomize(run);
    constexpr int64_t kFirst = 8;  // of the batch, the micro-batch's
    for (int64_t step = 0; step < 3; ++step) {
      SCOPED_TRACE(std::string(decay) + " " + std::to_string(step));
      run.context.step = step;
      double loss = 0;
      std::vector<float> gradients;
      for (int64_t s = kFirst; s < kFirst + kSequences; ++s) {
        std::vector<double> factors;
        for (size_t b = 0; b < Branches().size(); ++b) {
          factors.push_back(FactorOf(spec.stochastic_depth, b, step, s));
        }
        const Multiplied one(BatchOfStep(s, 1), factors);
        loss += one.loss;
        gradients.resize(one.gradients.size());
        for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += one.gradients[i];
      }
      const double own = run.Differentiate(BatchOfStep(kFirst, kSequences), 1.0f, kFirst);
      EXPECT_NEAR(own, loss, 1e-5 * loss);
      ExpectNear(run.Gradients(), gradients);
    }
  }
}

TEST(StochasticDepthTest, GradientsAgreeWithFiniteDifferences) {
  for (const char* mode : {"batch", "sample"}) {
    TinyRun run(Spec(mode), kFloat32);
    Randomize(run);
    const Batch batch = BatchOfStep(0, kSequences);
    run.context.step = 2;
    run.Differentiate(batch);
    ParameterSet& parameters = run.model->parameters();
    for (const char* name : {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight",
                             "transformer.h.3.mlp.c_proj.bias", "transformer.h.2.ln_2.weight"}) {
      SCOPED_TRACE(std::string(mode) + " " + name);
      const int64_t index = parameters.Find(name).value();
      const TensorView value = parameters.value(index);
      const std::vector<float> slope = ValuesOf(parameters.gradient(index));
      const std::vector<float> start = ValuesOf(value);
      double norm = 0;
      for (const float each : slope) norm += std::pow(each, 2);
      norm = std::sqrt(norm);
      double loss[2];
      constexpr double kStep = 2e-3;
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < start.size(); ++i) {
          const double direction = norm == 0 ? 1 : slope[i] / norm;
          value.As<float>()[i] =
              start[i] + static_cast<float>((side == 0 ? -kStep : kStep) * direction);
        }
        WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
        loss[side] = run.Differentiate(batch);
      }
      std::copy(start.begin(), start.end(), value.As<float>());
      WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
      run.Differentiate(batch);
      EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), norm, 0.01 * norm + 0.02);
    }
  }
}

TEST(StochasticDepthTest, EvaluationComputesAllBranchesAsTheyAre) {
  TinyRun plain(Plain(), kFloat32);
  Randomize(plain);
  const Batch batch = BatchOfStep(0, kSequences);
  for (const char* mode : {"batch", "sample"}) {
    TinyRun run(Spec(mode), kFloat32);
    Randomize(run);
    EXPECT_EQ(run.Loss(batch), plain.Loss(batch));
    EXPECT_EQ(run.Logits(batch), plain.Logits(batch));
  }
}

TEST(StochasticDepthTest, BranchesAreDrawnWithTheirProbabilities) {
  constexpr int64_t kSteps = 4000;
  const StochasticDepthSpec spec = Spec("batch").stochastic_depth;
  for (size_t b = 0; b < Branches().size(); ++b) {
    double computed = 0, sum = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double factor = FactorOf(spec, b, step, 0);
      computed += factor > 0 ? 1 : 0;
      sum += factor;
    }
    const double expected = 1 - kRate * static_cast<double>(b / 2 + 1) / kLayers;
    EXPECT_NEAR(computed / kSteps, expected, 0.03);
    EXPECT_NEAR(sum / kSteps, 1, 0.07) << "what evaluation computes";
  }
}

TEST(StochasticDepthTest, RecomputationGivesTheSameBits) {
  for (const char* mode : {"batch", "sample"}) {
    for (const PrecisionRecipe* precision : {&kFp32Precision, &kBf16Precision}) {
      SCOPED_TRACE(std::string(mode) + " in " + std::string(precision->name));
      TinyRun kept(Spec(mode), {precision, true, {}});
      for (const char* policy : {"recompute", "attention"}) {
        for (const int64_t segment : {1, 2}) {
          if (policy == std::string("attention") && segment > 1) continue;
          TinyRun other(Spec(mode),
                        {precision, true, std::vector<std::string>(kLayers, policy), segment});
          for (int64_t step = 0; step < 3; ++step) {
            kept.context.step = other.context.step = step;
            const Batch batch = BatchOfStep(0, kSequences);
            EXPECT_EQ(other.Differentiate(batch), kept.Differentiate(batch));
            EXPECT_EQ(other.Gradients(), kept.Gradients());
          }
        }
      }
    }
  }
}

// The engine counts the products that it runs; of each branch those of the steps that compute it.
TEST(StochasticDepthTest, TheWorkOfSkippedBranchesIsNotDone) {
  const std::pair<const char*, int64_t> micro_batches[] = {
      {"batch", kSequences}, {"sample", kSequences}, {"sample", 2}, {"sample", 1}};
  for (const auto& [mode, micro_batch] : micro_batches) {
    SCOPED_TRACE(std::string(mode) + ", " + std::to_string(micro_batch) + " sequences");
    const ModelSpec spec = Spec(mode);
    JobSpec job = TinyJob(micro_batch);
    job.model = spec;
    const ModelShape shape = ShapeOf(job);
    const ComputedShares computed = ComputedSharesOf(shape, micro_batch);
    constexpr int64_t kSteps = 100;
    constexpr int64_t kFirstSequence = 0;
    // By branch, of a step that computes all.
    const int64_t length = spec.context;
    double others = 0, of_attention = 0, of_mlp = 0, expected = 0, all = 0;
    for (const Gemm& gemm : WeightGemms(shape, micro_batch * length, length, 4)) {
      const bool attention = IsAttention(gemm.role);
      const bool mlp = IsMlp(gemm.role);
      (attention ? of_attention
       : mlp     ? of_mlp
                 : others) += gemm.Flops() / (attention || mlp ? kLayers : 1);
      expected += ComputedShare(computed, gemm.role) * gemm.Flops();
      all += gemm.Flops();
    }
    TinyRun run(spec, kFloat32);
    const Batch batch = BatchOfStep(kFirstSequence, micro_batch);
    double counted = 0, drawn = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      run.context.step = step;
      Profiler profiler;
      run.context.profiler = &profiler;
      run.Differentiate(batch);
      run.context.profiler = nullptr;
      for (const auto& [name, entry] : profiler.entries()) {
        if (!name.starts_with("attention")) counted += entry.flops;
      }
      drawn += others;
      for (size_t b = 0; b < Branches().size(); ++b) {
        double sequences = 0;
        for (int64_t s = 0; s < micro_batch; ++s) {
          sequences += FactorOf(spec.stochastic_depth, b, step, s) > 0 ? 1 : 0;
        }
        // One is computed for nothing where none keeps the branch.
        if (spec.stochastic_depth.mode == "sample") sequences = std::max(sequences, 1.0);
        drawn +=
            (b % 2 == 0 ? of_attention : of_mlp) * sequences / static_cast<double>(micro_batch);
      }
    }
    EXPECT_NEAR(counted / drawn, 1, 1e-3);
    // What the planner expects, except for chance.
    EXPECT_NEAR(counted / kSteps / expected, 1, 0.05);
    if (micro_batch > 1) {
      EXPECT_LT(expected / all, 0.8);
    } else {
      EXPECT_NEAR(expected / all, 1, 1e-12) << "every branch is computed for something";
    }
  }
}

TEST(StochasticDepthTest, ThePlannerCountsWhatIsExpectedToBeComputed) {
  const ModelShape plain(Plain()), linear(Spec("batch")), uniform(Spec("sample", 0.5, "uniform"));
  EXPECT_EQ(plain.computed.attention, 1);
  EXPECT_NEAR(linear.computed.attention, 1 - kRate * (1 + 2 + 3 + 4) / 16, 1e-12);
  EXPECT_NEAR(uniform.computed.mlp, 0.5, 1e-12);
  // At least one sequence of a micro-batch.
  EXPECT_NEAR(ComputedSharesOf(uniform, 1).mlp, 1, 1e-12);
  EXPECT_NEAR(ComputedSharesOf(uniform, 4).mlp, 0.5 + std::pow(0.5, 4) / 4, 1e-12);
  EXPECT_EQ(ComputedSharesOf(linear, 1).mlp, linear.computed.mlp) << "drawn for all of it";
  const ModelSpec sample = Spec("sample");
  const ModelShape stage(sample, {.blocks = 2, .first = true, .last = false}, 1, false);
  EXPECT_EQ(ComputedSharesOf(stage, 2).attention, ComputedSharesOf(sample, 2).attention);
  const auto of_blocks = [](const ModelShape& shape) {
    const double head = 6.0 * static_cast<double>(shape.head.all);
    return TrainingFlopsPerToken(shape, 16) - head;
  };
  // Norms and biases, which the counts of parameters have, too, are small.
  EXPECT_NEAR(of_blocks(uniform) / of_blocks(plain), 0.5, 0.03);
  EXPECT_EQ(ForwardFlopsPerToken(uniform, 16), ForwardFlopsPerToken(plain, 16)) << "evaluation";
}

TEST(StochasticDepthTest, SettingsWithoutARateAreRefused) {
  const auto error = [](const StochasticDepthSpec& spec) {
    JobSpec job = TinyJob();
    job.data.train = {"a.txt"};
    job.model.stochastic_depth = spec;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.rate = 0.1, .decay = "uniform", .mode = "sample"}), "");
  EXPECT_THAT(
      error({.mode = "sample"}),
      testing::HasSubstr("model.stochastic_depth.mode sample says how branches are skipped, "
                         "and none is; hint: model.stochastic_depth.rate above 0"));
  EXPECT_THAT(error({.decay = "uniform"}),
              testing::HasSubstr("model.stochastic_depth.decay uniform says how"));
}

// The plan has room for a step that computes everything.
TEST(StochasticDepthTest, MemoryStaysWithinWhatIsPredicted) {
  for (const char* mode : {"batch", "sample"}) {
    for (const int64_t recomputed : {int64_t{0}, kLayers}) {
      SCOPED_TRACE(std::string(mode) + ", " + std::to_string(recomputed) + " recomputed");
      JobSpec job = TinyJob(8);
      job.model = Spec(mode, 0.3);
      job.model.width = 128;
      job.model.context = 64;
      Plan plan = TinyPlan("fp32", 4, 2);
      plan.block_memory_policy = BlockPolicies(kLayers, recomputed);
      RandomTokens tokens(job.model.vocab_size, job.model.context);
      TinyTraining run(job, plan, tokens);
      MemoryBreakdown measured;
      for (int step = 0; step < 8; ++step) measured = run.Step().peak_memory;
      const MemoryBreakdown predicted = PredictMemory(MemoryInputsOf(job, plan, {}));
      const auto activations = static_cast<double>(predicted.activations_bytes);
      const auto workspace = static_cast<double>(predicted.workspace_bytes);
      EXPECT_LE(static_cast<double>(measured.activations_bytes), 1.03 * activations);
      EXPECT_LE(static_cast<double>(measured.workspace_bytes), 1.03 * workspace);
      EXPECT_GE(static_cast<double>(measured.activations_bytes), 0.7 * activations);
    }
  }
}

TEST(StochasticDepthTest, ARestoredStateGoesOnBitForBit) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  for (const char* mode : {"batch", "sample"}) {
    JobSpec job = TinyJob(4);
    job.model = Spec(mode);
    TinyTraining original(job, TinyPlan("bf16", 2, 2), tokens);
    for (int i = 0; i < 3; ++i) original.Step();
    TinyTraining copy(job, TinyPlan("bf16", 2, 2), tokens);
    const auto from = original.trainer->StateTensors();
    const auto to = copy.trainer->StateTensors();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(copy.Step().loss, original.Step().loss);
    EXPECT_EQ(copy.Parameters(), original.Parameters());
  }
}

// With one sequence a micro-batch ranks keep different branches.
TEST(StochasticDepthTest, MeshesTrainAsOneRankDoes) {
  struct RunConfig {
    std::string name;
    void (*change)(MeshCase& c);
  };
  const std::vector<RunConfig> ways = {
      {"data 4", [](MeshCase& c) { c.plan.mesh.data = 4; }},
      {"data 4, one sequence a micro-batch",
       [](MeshCase& c) {
         c.plan.mesh.data = 4;
         c.plan.micro_batch = 1;
         c.plan.bucket_bytes = 2048;
       }},
      {"tensor 2", [](MeshCase& c) { c.plan.mesh.tensor = 2; }},
      {"pipeline 2",
       [](MeshCase& c) {
         c.plan.mesh.pipeline = 2;
         c.plan.stage_blocks = {2, 2};
       }},
      {"zero bubble 2 x data 2",
       [](MeshCase& c) {
         c.plan.mesh.data = 2;
         c.plan.mesh.pipeline = 2;
         c.plan.pipeline_schedule = "zero_bubble";
         c.plan.stage_blocks = {2, 2};
         c.plan.micro_batch = 1;
         c.plan.bucket_bytes = 2048;
       }},
      {"zero 1", [](MeshCase& c) { c.plan.mesh.data = 2, c.plan.zero_stage = 1; }},
      {"zero 2", [](MeshCase& c) { c.plan.mesh.data = 2, c.plan.zero_stage = 2; }},
      {"zero 3, one sequence a micro-batch",
       [](MeshCase& c) {
         c.plan.mesh.data = 4;
         c.plan.zero_stage = 3;
         c.plan.micro_batch = 1;
       }},
      {"zero 3, frozen except the last block",
       [](MeshCase& c) {
         c.plan.mesh.data = 2;
         c.plan.zero_stage = 3;
         c.job.train.steps = 6;
         c.job.model.untied_classifier = true;
         c.job.model.freeze = {"transformer.w*", "*.h.0.*", "*.h.1.*", "*.h.2.*"};
       }},
      {"tensor 2 x data 2, recomputed",
       [](MeshCase& c) {
         c.plan.mesh.data = c.plan.mesh.tensor = 2;
         c.plan.block_memory_policy = std::vector<std::string>(kLayers, "recompute");
       }},
  };
  for (const char* mode : {"batch", "sample"}) {
    for (const RunConfig& way : ways) {
      SCOPED_TRACE(std::string(mode) + ", " + way.name);
      constexpr int64_t kBatch = 8;
      MeshCase c{TinyJob(kBatch), TinyPlan("fp32", 2, 1)};
      c.job.model = Spec(mode);
      c.job.train.steps = 3;
      c.job.train.gradient_clip_norm = 0.5;
      way.change(c);
      c.plan.accumulation_steps = kBatch / c.plan.micro_batch / c.plan.mesh.data;
      const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
      ExpectFollows(ranks, TrainOnMesh(c.Whole())[0], 1e-5, 1e-4);
    }
  }
}

}  // namespace
}  // namespace weft::engine
