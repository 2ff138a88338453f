// Networks of structured matrices against those of the whole matrices that they stand for.
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/spec/tensor_parallel.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/structured_matrices/whole_matrices_testing.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

/// `kind` for the matrices of the MLPs, or for all.
JobSpec Job(const std::string& kind, bool attention = false) {
  JobSpec job = TinyJob(4);
  job.model.structured_matrices.kind = kind;
  if (kind == "pixelfly") {
    job.model.width = 64;
    job.model.structured_matrices.block_size = 16;
    job.model.structured_matrices.density = 1;
    job.model.structured_matrices.low_rank_share = 0.5;
  }
  if (attention) job.model.structured_matrices.layers = {"*"};
  job.train.eval_sequences = 8;
  return job;
}

ModelSpec Plain(ModelSpec model) {
  model.structured_matrices = {};
  return model;
}

/// Moves all parameters away from their start.
void Perturb(TinyRun& run) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const TensorView view = parameters.value(i);
    const std::vector<float> change =
        Normal(static_cast<size_t>(view.shape.Elements()), 50 + static_cast<uint64_t>(i), 0.05);
    for (size_t k = 0; k < change.size(); ++k) view.As<float>()[k] += change[k];
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

std::string Folder(const std::string& name) {
  return ::testing::TempDir() + name;
}

class StructuredMatricesKindsTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, StructuredMatricesKindsTest,
                         ::testing::Values("monarch", "pixelfly"));

TEST_P(StructuredMatricesKindsTest, TheNetworkIsThatOfTheExportedMatrices) {
  auto batch = TinyTokens().Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = Folder("structured");
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool attention : {false, true}) {
      SCOPED_TRACE(std::string(family) + (attention ? " with attention" : ""));
      JobSpec job = Job(GetParam(), attention);
      job.model.family = family;
      TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
      Perturb(run);
      ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
      TinyRun plain(Plain(job.model), ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *plain.model).ok());
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());
      EXPECT_LT(Difference(AsDoubles(run.Logits(*batch)), AsDoubles(plain.Logits(*batch))), 1e-5);
      EXPECT_NEAR(run.Differentiate(*batch), plain.Differentiate(*batch), 1e-3);
      const ParameterSet& structured = run.model->parameters();
      const ParameterSet& whole = plain.model->parameters();
      int64_t weights = 0;
      for (int64_t i = 0; i < structured.size(); ++i) {
        const Parameter& parameter = structured[i];
        if (parameter.in_place_of.empty()) {
          EXPECT_LT(Difference(AsDoubles(structured.gradient(i)),
                               AsDoubles(whole.gradient(*whole.Find(parameter.name)))),
                    1e-4)
              << parameter.name;
          continue;
        }
        const int64_t weight = *whole.Find(parameter.in_place_of);
        const WholeWeight tensors(job.model.structured_matrices, structured, i);
        const auto expected = tensors.gradients(AsDoubles(whole.gradient(weight)));
        for (int64_t f = 0; f < tensors.count(); ++f) {
          EXPECT_LT(Difference(AsDoubles(structured.gradient(i + f)), expected[f]), 1e-4)
              << structured[i + f].name;
        }
        ++weights;
        i += tensors.count() - 1;
      }
      const int64_t matrices = family == std::string("llama") ? 7 : 4;
      EXPECT_EQ(weights, 2 * (attention ? matrices : matrices == 7 ? 3 : 2));

      // And such a folder can be gone on from with the same structure.
      TinyRun again(job.model, ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *again.model).ok());
      ASSERT_TRUE(again.model->Pack(again.context).ok());
      // The matrices are found again exactly for monarch alone.
      const bool same = job.model.structured_matrices.kind == "monarch";
      EXPECT_LT(Difference(AsDoubles(again.Logits(*batch)), AsDoubles(run.Logits(*batch))),
                same ? 1e-5 : 1.0);
    }
  }
}

TEST_P(StructuredMatricesKindsTest, ParametersAreThoseThatAreCounted) {
  // By family, one of several matrices that are one product.
  for (const auto& [family, part] : std::map<std::string, std::string>{
           {"gpt2", "*c_attn*"}, {"llama", "*up_proj*"}, {"bert", "*key*"}, {"vit", "*key*"}}) {
    for (const std::vector<std::string>& layers :
         std::vector<std::vector<std::string>>{{}, {"*"}, {"*.1.*"}, {part}}) {
      SCOPED_TRACE(family + (layers.empty() ? "" : " " + layers[0]));
      ModelSpec spec = Job(GetParam()).model;
      spec.family = family;
      spec.structured_matrices.layers = layers;
      spec.freeze = {"*.0.*"};
      if (family == "vit") {
        spec.image_size = 12;
        spec.patch_size = 3;
        spec.image_channels = 1;
        spec.classes = 10;
        spec.vocab_size = 0;
      }
      const std::vector<ParameterInfo> counted = ParametersOf(spec);
      const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
      const ParameterSet& parameters = run.model->parameters();
      ASSERT_EQ(parameters.size(), std::ssize(counted));
      EXPECT_EQ(parameters.ElementCount(), ModelShape(spec).counts.Total());
      for (const ParameterInfo& info : counted) {
        auto index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const Parameter& parameter = parameters[*index];
        EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
        EXPECT_EQ(parameter.in_place_of, info.in_place_of);
        EXPECT_EQ(parameter.unit, info.unit);
        EXPECT_EQ(std::vector<int64_t>(parameter.shape.dims.begin(),
                                       parameter.shape.dims.begin() + parameter.shape.rank),
                  info.shape);
      }
    }
  }
}

TEST_P(StructuredMatricesKindsTest, WeightsStartWithTheDeviationOfTheNetworksInitialization) {
  for (const char* method : {"gpt2", "xavier_uniform", "truncated_normal", "t_fixup"}) {
    ModelSpec spec = Job(GetParam(), true).model;
    spec.width = 64;
    spec.initialization.method = method;
    const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
    const TinyRun plain(Plain(spec), ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].in_place_of.empty()) continue;
      const int64_t weight = *plain.model->parameters().Find(parameters[i].in_place_of);
      const TensorView whole = plain.model->parameters().value(weight);
      const auto square = [](const Doubles& values) {
        double sum = 0;
        for (double v : values) sum += v * v;
        return std::sqrt(sum / static_cast<double>(values.size()));
      };
      const WholeWeight tensors(spec.structured_matrices, parameters, i);
      EXPECT_NEAR(square(tensors.weight()) / square(AsDoubles(whole)), 1, 0.1)
          << method << " " << parameters[i].in_place_of;
      i += tensors.count() - 1;
    }
  }
}

TEST_P(StructuredMatricesKindsTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    if (precision->block_products != nullptr) continue;
    SCOPED_TRACE(precision->name);
    const JobSpec job = Job(GetParam(), true);
    Plan plan = TinyPlan(std::string(precision->name), 2, 2);
    TinyTraining whole(job, plan, tokens);
    for (int i = 0; i < 3; ++i) whole.Step();
    // Recomputation computes the same again.
    plan.block_memory_policy = {"recompute", "recompute"};
    TinyTraining resumed(job, plan, tokens);
    ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
    const std::vector<NamedTensor> from = whole.trainer->StateTensors();
    const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].name, to[i].name);
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
    for (int i = 0; i < 3; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
    EXPECT_EQ(resumed.Parameters(), whole.Parameters());
  }
}

TEST_P(StructuredMatricesKindsTest, RanksAgreeWithOneRank) {
  constexpr int kRanks = 2;
  const JobSpec job = Job(GetParam());
  RandomTokens alone = TinyTokens();
  TinyTraining one(job, TinyPlan("fp32", 2, 2), alone);
  StepReport single;
  for (int i = 0; i < 4; ++i) single = one.Step();
  std::vector<float> parameters[kRanks];
  StepReport reports[kRanks];
  RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
    RandomTokens tokens = TinyTokens();
    Plan plan = TinyPlan("fp32", 2, 1);
    plan.mesh.data = kRanks;
    TinyRun run(job.model, ModelOptionsOf(plan));
    DataParallel reducer(&group, &run.model->parameters(), 4096);
    auto trainer = Trainer::New(job, plan,
                                {.context = &run.context,
                                 .model = run.model.get(),
                                 .train = &tokens,
                                 .reducer = &reducer,
                                 .rank = group.rank()});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 4; ++i) {
      auto report = (*trainer)->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      reports[group.rank()] = *report;
    }
    parameters[group.rank()] = run.Parameters();
  });
  EXPECT_EQ(parameters[1], parameters[0]);
  EXPECT_NEAR(reports[0].loss, single.loss, 1e-5);
  EXPECT_NEAR(reports[0].gradient_norm, single.gradient_norm, 1e-4 * single.gradient_norm);
  EXPECT_LT(Difference(AsDoubles(parameters[0]), AsDoubles(one.Parameters())), 1e-3);
}

TEST_P(StructuredMatricesKindsTest, LearnsWithEveryOptimizer) {
  CountingTokens tokens(7, 16);
  for (const auto& [name, rate] : std::map<std::string, double>{{"sgd", 0.1},
                                                                {"lars", 0.3},
                                                                {"adamw", 3e-3},
                                                                {"lamb", 1e-2},
                                                                {"lion", 1e-3},
                                                                {"adafactor", 3e-2},
                                                                {"muon", 3e-3}}) {
    SCOPED_TRACE(name);
    JobSpec job = Job(GetParam());
    job.optimizer.name = name;
    job.optimizer.learning_rate = rate;
    job.optimizer.weight_decay = 0;
    job.optimizer.groups = {
        {.parameters = {"*.0.mlp.c_fc.weight"}, .learning_rate_scale = 0, .weight_decay = {}}};
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    const ParameterSet& parameters = run.model->parameters();
    int64_t held = 0;
    while (parameters[held].in_place_of != "transformer.h.0.mlp.c_fc.weight") ++held;
    const Doubles before = AsDoubles(parameters.value(held));
    const double first = run.Step().loss;
    for (int i = 0; i < 25; ++i) run.Step();
    EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.05);
    EXPECT_EQ(AsDoubles(parameters.value(held)), before)
        << "the name of the weight stands for its factors";
  }
}

TEST(StructuredMatricesTest, CountsFewerMultiplyAddsAsTheEngineDoes) {
  RandomTokens tokens = TinyTokens();
  for (const bool attention : {false, true}) {
    const JobSpec job = Job("monarch", attention);
    const ModelShape shape = ShapeOf(job), plain(Plain(job.model));
    EXPECT_LT(TrainingFlopsPerToken(shape, 16), TrainingFlopsPerToken(plain, 16));
    double flops = 0;
    for (const Gemm& gemm : WeightGemms(shape, 64, 16, 4)) {
      if (IsMlp(gemm.role)) flops += gemm.Flops();
    }
    // By hand, of width 32 and 4 blocks: up has 4 times [8, 8] and [32, 8], down [8, 32] and
    // [8, 8]. What the first factor makes is computed once more for the gradient of the second.
    const double up = 4 * (8 * 8 + 32 * 8), down = 4 * (8 * 32 + 8 * 8);
    const double again = 4 * 8 * 8 + 4 * 8 * 32;
    EXPECT_EQ(flops, 2 * 64 * 2 * (3 * (up + down) + again));
  }
}

// Ranks have some blocks of the second factor and a part of each of the first in layers that go up;
// in layers that go down it is the other way round.
TEST(StructuredMatricesTest, TensorParallelRanksHaveTheBlocksThatAreCounted) {
  constexpr int kRanks = 2;
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    ModelSpec model = Job("monarch").model;
    model.family = family;
    RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
      const Result<TensorParallel> ranks = TensorParallel::New(&group, false, 1);
      ASSERT_TRUE(ranks.ok());
      ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
      options.tensor = &*ranks;
      const TinyRun run(model, options);
      const ParameterSet& parameters = run.model->parameters();
      int64_t factors = 0;
      for (const ParameterInfo& info : ParametersOfRank(model, kRanks, 1)) {
        if (info.in_place_of.empty()) continue;
        const Result<int64_t> index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const Parameter& parameter = parameters[*index];
        EXPECT_TRUE(parameter.shape == Shape({info.shape[0], info.shape[1]})) << info.name;
        EXPECT_EQ(parameter.parts, info.parts) << info.name;
        EXPECT_EQ(std::ssize(parameter.parts), info.products) << info.name;
        ++factors;
      }
      EXPECT_EQ(factors, family == std::string("llama") ? 12 : 8);
    });
  }
}

TEST(StructuredMatricesTest, TensorParallelRanksHaveWholeBlocks) {
  const auto refusal = [](const ModelSpec& model, int64_t ranks) {
    return std::string(CheckTensorParallel(model, ranks, 1).message());
  };
  ModelSpec model = Job("monarch").model;
  model.heads = 4;
  EXPECT_EQ(refusal(model, 4), "");
  model.structured_matrices.blocks = 2;
  EXPECT_EQ(refusal(model, 2), "");
  EXPECT_THAT(refusal(model, 4),
              HasSubstr("blocks 2 has 64 rows of transformer.h.0.mlp.c_fc.weight "
                        "in a block, and 4 tensor-parallel ranks"));
  model.structured_matrices.blocks = 4;
  model.structured_matrices.layers = {"*"};
  EXPECT_THAT(refusal(model, 2), HasSubstr("24 rows of transformer.h.0.attn.c_attn.weight"))
      << "of queries, keys and values each";
}

TEST(StructuredMatricesTest, NamesWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  ModelSpec model = Job("monarch").model;
  model.structured_matrices.layers = {"transformer.h.1.mlp.c_fc.wieght"};
  EXPECT_THAT(refusal(model), HasSubstr("did you mean 'transformer.h.1.mlp.c_fc.weight'?"));
  model.structured_matrices.layers = {};
  model.structured_matrices.blocks = 8;
  EXPECT_THAT(refusal(model), HasSubstr("blocks 8 does not fit transformer.h.0.mlp.c_fc.weight "
                                        "[128, 32]: its square must divide the smaller side"));
  model.structured_matrices = Spec("pixelfly");
  model.structured_matrices.density = 0.4;
  EXPECT_THAT(refusal(model), HasSubstr("has no room for the diagonal blocks")) << "2 x 8 blocks";
  model.structured_matrices.block_size = 24;
  EXPECT_THAT(refusal(model), HasSubstr("block_size 24 does not fit"));
  model.structured_matrices = {};
  model.structured_matrices.density = 0.5;
  EXPECT_THAT(refusal(model), HasSubstr("has settings and no kind"));
}

}  // namespace
}  // namespace weft::engine
