// Learned growth: where it starts, and its gradients against finite differences.
#include "worker/engine/growth/learned_growth.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/growth/testing.h"

namespace weft::engine {
namespace {

ModelSpec Model(int64_t layers, int64_t width, const std::string& family = "gpt2") {
  ModelSpec model;
  model.family = family;
  model.layers = layers;
  model.width = width;
  model.heads = width / 8;
  model.vocab_size = 11;
  model.context = 6;
  model.classes = 3;
  model.image_size = 8;
  model.patch_size = 4;
  if (family == "mixtral") {
    model.family = "llama";
    model.experts = 2;
  }
  if (model.family == "llama") {
    model.kv_heads = width / 16;
    model.mlp_width = 3 * width;
    model.qkv_bias = true;
  }
  return model;
}

LearnedGrowth Grow(const ModelSpec& from, const ModelSpec& to, const TensorsByName& before) {
  auto learned =
      LearnedGrowth::New(from, to, Method("ligo"), [&](GrownFrom, const std::string& name) {
        return Result<std::vector<double>>(before.at(name));
      });
  WEFT_CHECK(learned.ok(), learned.status().message());
  return *std::move(learned);
}

TEST(LearnedGrowth, StartsAsCopiesDo) {
  for (const char* family : {"gpt2", "llama", "mixtral", "bert", "vit"}) {
    SCOPED_TRACE(family);
    for (const auto& [layers, width] : {std::pair{4, 16}, {2, 32}, {3, 48}}) {
      const ModelSpec small = Model(2, 16, family), large = Model(layers, width, family);
      const TensorsByName before = RandomTensors(small, 21);
      LearnedGrowth learned = Grow(small, large, before);
      for (const auto& [name, values] : Grown(small, large, Method("fpi"), before)) {
        const auto made = learned.ValueOf(name);
        ASSERT_TRUE(made.ok());
        ASSERT_EQ(made->size(), values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_NEAR((*made)[i], values[i], 1e-6) << name;
        }
      }
    }
  }
}

// A third of the side takes single positions, which are not those of neurons either.
TEST(LearnedGrowth, StartsWithPositionsOfOtherImagesResized) {
  for (const auto& [before_size, size] : {std::pair{24, 8}, {8, 16}, {8, 4}}) {
    ModelSpec small = Model(2, 16, "vit"), large = Model(3, 32, "vit");
    small.image_size = before_size;
    large.image_size = size;
    const TensorsByName before = RandomTensors(small, 21);
    LearnedGrowth learned = Grow(small, large, before);
    for (const auto& [name, values] : Grown(small, large, Method("fpi"), before)) {
      const auto made = learned.ValueOf(name);
      ASSERT_TRUE(made.ok());
      ASSERT_EQ(made->size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR((*made)[i], values[i], 1e-6) << name << " of " << size << " pixels";
      }
    }
  }
}

TEST(LearnedGrowth, LearnsWhatGrowsAlone) {
  const ModelSpec small = Model(2, 16);
  const TensorsByName before = RandomTensors(small, 22);
  const auto count = [&](const ModelSpec& large) {
    LearnedGrowth learned = Grow(small, large, before);
    int64_t numbers = 0;
    for (const LearnedGrowth::Numbers& each : learned.Learned()) numbers += std::ssize(each.values);
    return numbers;
  };
  constexpr int64_t kTensorsOfBlock = 12;
  EXPECT_EQ(count(Model(3, 16)), kTensorsOfBlock * 3 * 2);
  // The stream, written, read, and by the norm before the tied classifier; queries, keys, values,
  // what reads these; and the MLP's, written and read.
  EXPECT_EQ(count(Model(2, 32)), (3 + 4) * 32 * 16 + 2 * 128 * 64);
  EXPECT_EQ(count(Model(3, 32)), kTensorsOfBlock * 3 * 2 + (3 + 4) * 32 * 16 + 2 * 128 * 64);
}

/// The mean square of how far all grown tensors are from `wanted`, whose gradients are added.
double Loss(LearnedGrowth& learned, const TensorsByName& wanted, bool differentiates) {
  double sum = 0;
  for (const auto& [name, target] : wanted) {
    const std::vector<float> made = *learned.ValueOf(name);
    std::vector<float> gradient(made.size());
    for (size_t i = 0; i < made.size(); ++i) {
      const double error = static_cast<double>(made[i]) - target[i];
      sum += error * error / 2;
      gradient[i] = static_cast<float>(error);
    }
    if (differentiates) WEFT_CHECK(learned.AddGradient(name, gradient).ok(), "gradient");
  }
  return sum;
}

TEST(LearnedGrowth, GradientsAgreeWithFiniteDifferences) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    SCOPED_TRACE(family);
    const ModelSpec small = Model(2, 16, family), large = Model(3, 32, family);
    const TensorsByName wanted = RandomTensors(large, 24);
    LearnedGrowth learned = Grow(small, large, RandomTensors(small, 23));
    // Off the start, where much is zero.
    PhiloxStream random(PhiloxKey{25, 0, 0});
    for (const LearnedGrowth::Numbers& each : learned.Learned()) {
      for (float& value : each.values) value += static_cast<float>(0.05 * random.Normal());
    }
    Loss(learned, wanted, true);
    for (const LearnedGrowth::Numbers& each : learned.Learned()) {
      // Along the gradient, and at some numbers.
      const std::vector<float> start(each.values.begin(), each.values.end());
      double norm = 0;
      for (const float slope : each.gradients) norm += static_cast<double>(slope) * slope;
      norm = std::sqrt(norm);
      ASSERT_GT(norm, 0);
      constexpr double kStep = 1e-2;
      double loss[2];
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < start.size(); ++i) {
          const double direction = each.gradients[i] / norm;
          each.values[i] = start[i] + static_cast<float>((side == 0 ? -kStep : kStep) * direction);
        }
        loss[side] = Loss(learned, wanted, false);
      }
      std::copy(start.begin(), start.end(), each.values.begin());
      EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), norm, 2e-3 * norm);
      for (size_t i = 0; i < start.size(); i += start.size() / 2) {
        for (int side = 0; side < 2; ++side) {
          each.values[i] = start[i] + static_cast<float>(side == 0 ? -kStep : kStep);
          loss[side] = Loss(learned, wanted, false);
        }
        each.values[i] = start[i];
        EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), each.gradients[i], 5e-3 * norm) << i;
      }
    }
  }
}

TEST(LearnedGrowth, StepsComeNearerToWhatIsWanted) {
  const ModelSpec small = Model(1, 16), large = Model(2, 32);
  const TensorsByName wanted = RandomTensors(large, 26);
  LearnedGrowth learned = Grow(small, large, RandomTensors(small, 27));
  const double before = Loss(learned, wanted, true);
  for (int step = 0; step < 30; ++step) {
    ASSERT_TRUE(learned.Update(0.01).ok());
    Loss(learned, wanted, true);
  }
  EXPECT_LT(Loss(learned, wanted, false), 0.8 * before);
  EXPECT_GT(learned.flops(), 0);
}

TEST(LearnedGrowth, RefusesWhatIsNotThere) {
  const ModelSpec small = Model(1, 16), large = Model(2, 16);
  LearnedGrowth learned = Grow(small, large, RandomTensors(small, 28));
  EXPECT_EQ(learned.ValueOf("no.such.weight").status().code(), StatusCode::kInvalid);
  const std::vector<float> few(3);
  EXPECT_EQ(learned.AddGradient("transformer.wte.weight", few).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::engine
