// Growth that must not change what a network computes: in float64, and the engine follows.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/step_extent.h"
#include "worker/engine/growth/networks_testing.h"
#include "worker/engine/growth/testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using float64::LogitsOf;

const std::vector<Variant>& Variants() {
  static const auto* const variants = new std::vector<Variant>(VariantsWith({
      {"gpt2, norms after sums, own classifier",
       [](ModelSpec& m) {
         m.norm_position = "post";
         m.untied_classifier = true;
       }},
      {"llama, shared keys and values",
       [](ModelSpec& m) {
         m.family = "llama";
         m.kv_heads = m.heads / 2;
         m.mlp_width = 3 * m.width;
         m.qkv_bias = true;
       }},
      {"llama, one head of keys and values",
       [](ModelSpec& m) {
         m.family = "llama";
         m.kv_heads = 1;
         m.untied_classifier = true;
       }},
      {"llama, experts",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
       }},
  }));
  return *variants;
}

ModelSpec Sized(const Variant& variant, int64_t layers, int64_t width) {
  ModelSpec model = TinyModel();
  model.layers = layers;
  model.width = width;
  model.heads = width / 8;
  variant.change(model);
  return model;
}

// Sums of a few hundred float64 products, which growth reorders, in four sub-layers.
constexpr double kRounding = 1e-12;
// What changes the function does so by far more.
constexpr double kChange = 1e-3;

double DistanceAfter(const Variant& variant, int64_t layers, int64_t width, int64_t new_layers,
                     int64_t new_width, const GrowthSpec& growth) {
  const ModelSpec from = Sized(variant, layers, width), to = Sized(variant, new_layers, new_width);
  const TensorsByName before = RandomTensors(from, 11);
  return Distance(LogitsOf(to, Grown(from, to, growth, before)), LogitsOf(from, before));
}

TEST(GrowthFunction, TheEngineFollowsTheFormulas) {
  ModelOptions options;
  options.precision = &kFp32Precision;
  options.with_gradients = false;
  for (const Variant& variant : Variants()) {
    const ModelSpec model = Sized(variant, 2, 32);
    const TensorsByName tensors = RandomTensors(model, 17);
    TinyRun run(model, options);
    SetValues(run, tensors);
    // Attention scores of up to 50 in f32, of sums of 32 products.
    EXPECT_LT(Distance(run.Logits(BatchFor(model)), LogitsOf(model, tensors)), 1e-4)
        << variant.name;
  }
}

TEST(GrowthFunction, DecoalescingWidthKeepsTheLogits) {
  GrowthSpec growth = Method("decoalesce");
  growth.alpha = 1;
  for (const Variant& variant : Variants()) {
    EXPECT_LT(DistanceAfter(variant, 2, 32, 2, 64, growth), kRounding) << variant.name;
  }
}

TEST(GrowthFunction, FpiKeepsTheLogitsWhenAllColumnsAreRepeatedEquallyOften) {
  for (const Variant& variant : Variants()) {
    EXPECT_LT(DistanceAfter(variant, 2, 16, 2, 48, Method("fpi")), kRounding) << variant.name;
  }
}

double RmsOf(const float64::Row& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(GrowthFunction, SparklingKeepsTheScaleOfTheLogitsForAnyWidth) {
  for (const Variant& variant : Variants()) {
    EXPECT_LT(DistanceAfter(variant, 2, 16, 2, 32, Method("sparkling")), kRounding) << variant.name;
    if (Sized(variant, 2, 32).kv_heads > 1) continue;  // heads grow in whole groups
    const ModelSpec from = Sized(variant, 2, 64), to = Sized(variant, 2, 96);
    const TensorsByName before = RandomTensors(from, 16);
    const float64::Row logits = LogitsOf(from, before);
    const auto scale_after = [&](const char* method) {
      return RmsOf(LogitsOf(to, Grown(from, to, Method(method), before))) / RmsOf(logits);
    };
    EXPECT_NEAR(scale_after("sparkling"), 1, 0.15) << variant.name;
  }
}

TEST(GrowthFunction, FpiOfWiderMlpsKeepsTheLogitsForAnyWidth) {
  const Variant plain = Variants()[0];
  const Variant wide = {"wide", [](ModelSpec& m) { m.mlp_width = 100; }};
  const ModelSpec from = Sized(plain, 2, 16), to = Sized(wide, 2, 16);
  const TensorsByName before = RandomTensors(from, 12);
  EXPECT_LT(Distance(LogitsOf(to, Grown(from, to, Method("fpi"), before)), LogitsOf(from, before)),
            kRounding);
}

TEST(GrowthFunction, IdentityBlocksKeepTheLogits) {
  for (const Variant& variant : Variants()) {
    if (NormPositionOf(Sized(variant, 1, 16)) == "post") continue;
    for (const char* order : {"adjacent", "stacked"}) {
      GrowthSpec growth = Method("stack");
      growth.new_blocks = "identity";
      growth.depth_order = order;
      EXPECT_LT(DistanceAfter(variant, 1, 16, 3, 16, growth), kRounding) << variant.name;
      EXPECT_LT(DistanceAfter(variant, 2, 16, 3, 16, growth), kRounding) << variant.name;
    }
  }
}

TEST(GrowthFunction, CopiedBlocksAndAkiChangeTheLogits) {
  for (const Variant& variant : Variants()) {
    EXPECT_GT(DistanceAfter(variant, 2, 16, 4, 16, Method("stack")), kChange) << variant.name;
    EXPECT_GT(DistanceAfter(variant, 2, 16, 2, 32, Method("aki")), kChange) << variant.name;
  }
}

// The network of the new depth was trained all along, by layers that share blocks.
TEST(GrowthFunction, StackedNeighboursAreTheLayersThatSharedABlock) {
  for (const auto& [blocks, layers] : {std::pair{1, 3}, {2, 4}, {2, 6}, {4, 6}}) {
    const ModelSpec from = Sized(Variants()[0], blocks, 32), to = Sized(Variants()[0], layers, 32);
    JobSpec job;
    job.model = from;
    job.train.sampled_layers = blocks * 3;
    const Plan plan = TinyPlan("fp32");
    const TensorsByName before = RandomTensors(from, 15);
    TinyRun shared(from, ModelOptionsOf(plan, job.train)), grown(to, ModelOptionsOf(plan));
    SetValues(shared, before);
    SetValues(grown, Grown(from, to, Method("stack"), before));
    while (ExtentOf(job, shared.context.step).layers != layers) ++shared.context.step;
    const Batch batch = *RandomTokens(from.vocab_size, 16).Get(0, 0, 2);
    EXPECT_EQ(shared.Differentiate(batch), grown.Loss(batch)) << blocks << " to " << layers;
  }
}

/// Batches that a network learns from.
std::unique_ptr<BatchSource> DataFor(const ModelSpec& model) {
  if (model.family == "vit") return std::make_unique<NoiseImages>(model);
  if (HeadOf(model) == "classification") {
    return std::make_unique<RandomLabelled>(7, 16, model.classes);
  }
  if (model.family == "bert") return std::make_unique<RandomMasked>(7, 16, 0.5);
  return std::make_unique<CountingTokens>(7, 16);
}

/// How far apart rows that were repeated are after some steps, by matrix of the first block: the
/// largest difference between the halves of a part.
std::map<std::string, double> SpreadsAfterTraining(const Variant& variant, double alpha) {
  const ModelSpec small = Sized(variant, 2, 16), large = Sized(variant, 2, 32);
  GrowthSpec growth = Method("decoalesce");
  growth.alpha = alpha;
  const TensorsByName tensors =
      Grown(small, large, growth, RandomTensors(small, 13), RandomTensors(large, 14));
  JobSpec job = TinyJob(4);
  job.model = large;
  job.optimizer.learning_rate = 1e-2;
  job.schedule.kind = "constant";
  const std::unique_ptr<BatchSource> data = DataFor(large);
  TinyTraining training(job, TinyPlan("fp32"), *data);
  SetValues(training, tensors);
  for (int step = 0; step < 20; ++step) training.Step();
  const ParameterSet& parameters = training.model->parameters();
  std::map<std::string, double> spreads;
  for (const ParameterInfo& matrix : ParametersOf(large)) {
    if (matrix.block != 0 || !matrix.block_matrix()) continue;
    const std::vector<float> values = ValuesOf(parameters.value(*parameters.Find(matrix.name)));
    std::vector<int64_t> parts = {matrix.shape[0]};
    if (matrix.role == ParameterRole::kQueriesKeysValues) {
      parts = {QueryWidth(large), KvWidth(large), KvWidth(large)};
    }
    double& spread = spreads[matrix.name];
    size_t first = 0;
    for (const int64_t rows : parts) {
      const auto half = static_cast<size_t>(rows * matrix.shape[1] / 2);
      for (size_t i = first; i < first + half; ++i) {
        spread = std::max(spread, std::abs(static_cast<double>(values[i]) - values[i + half]));
      }
      first += 2 * half;
    }
  }
  return spreads;
}

TEST(GrowthFunction, RepeatedRowsStayEqualUnlessTheLargerModelIsMixedIn) {
  // Heads and an MLP; heads that share keys and values, and an MLP with a gate; encoders.
  for (const char* name :
       {"gpt2", "llama, shared keys and values", "bert", "bert, classes", "vit"}) {
    const auto found = std::find_if(Variants().begin(), Variants().end(), [&](const Variant& each) {
      return each.name == std::string_view(name);
    });
    ASSERT_TRUE(found != Variants().end());
    const Variant& variant = *found;
    SCOPED_TRACE(variant.name);
    const std::map<std::string, double> copies = SpreadsAfterTraining(variant, 1);
    const std::map<std::string, double> mixed = SpreadsAfterTraining(variant, 0.5);
    EXPECT_GE(copies.size(), 4u);
    for (const auto& [matrix, spread] : copies) {
      // Bit for bit: factors are halves, and products add up each of their numbers in one order.
      EXPECT_EQ(spread, 0) << matrix;
      EXPECT_GT(mixed.at(matrix), 0.1) << matrix;
    }
  }
}

}  // namespace
}  // namespace weft::engine
