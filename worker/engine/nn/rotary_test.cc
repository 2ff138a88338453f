#include "worker/engine/nn/rotary.h"

#include <cmath>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

RopeScalingSpec Scaling(const char* kind, double factor) {
  RopeScalingSpec scaling;
  scaling.kind = kind;
  scaling.factor = factor;
  return scaling;
}

TEST(RotaryTest, Llama3FrequenciesAreThePublishedOnes) {
  struct Golden {
    int64_t head_dim;
    double factor;
    size_t index;
    double plain;
    double scaled;
  };
  for (const Golden& g : {Golden{128, 8, 0, 1, 1}, Golden{128, 8, 28, .00321144599, .00321144599},
                          Golden{128, 8, 29, .00261609925, .00216657076},
                          Golden{128, 8, 30, .00213111954, .00137189357},
                          Golden{128, 8, 32, .00141421356, .000524846161},
                          Golden{128, 8, 34, .00093847387, .000178507813},
                          Golden{128, 8, 35, .000764496988, 9.55621235e-5},
                          Golden{128, 8, 63, 2.45514079e-6, 3.06892599e-7},
                          Golden{64, 32, 15, .00213111954, .00129054793},
                          Golden{64, 32, 16, .00141421356, .000429556797},
                          Golden{64, 32, 17, .00093847387, 9.7082878e-5}}) {
    const auto plain = RotaryFrequencies(g.head_dim, 5e5, {});
    const auto scaled = RotaryFrequencies(g.head_dim, 5e5, Scaling("llama3", g.factor));
    ASSERT_EQ(plain.size(), static_cast<size_t>(g.head_dim / 2));
    EXPECT_NEAR(plain[g.index] / g.plain, 1, 1e-6) << g.index;
    EXPECT_NEAR(scaled[g.index] / g.scaled, 1, 1e-6) << g.index;
  }
  const auto plain = RotaryFrequencies(64, 5e5, {});
  const auto scaled = RotaryFrequencies(64, 5e5, Scaling("llama3", 32));
  EXPECT_EQ(scaled[14], plain[14]);
  for (size_t j = 18; j < 32; ++j) EXPECT_DOUBLE_EQ(scaled[j], plain[j] / 32);
}

TEST(RotaryTest, LinearScalingDividesEveryFrequency) {
  const auto plain = RotaryFrequencies(24, 10000, {});
  const auto scaled = RotaryFrequencies(24, 10000, Scaling("linear", 4));
  for (size_t j = 0; j < 12; ++j) EXPECT_DOUBLE_EQ(scaled[j] * 4, plain[j]);
}

TEST(RotaryTest, ProductsDependOnTheDistanceOnly) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  RotaryTable table(50, RotaryFrequencies(8, 10000, {}));
  ASSERT_TRUE(table.Prepare(context).ok());
  const auto dot = [&](int32_t query, int32_t key) {
    Tensor x = *Tensor::New(context, Component::kWorkspace, DType::kF32, {2, 8});
    Tensor positions = *Tensor::New(context, Component::kWorkspace, DType::kI32, {2});
    for (int i = 0; i < 16; ++i) x.As<float>()[i] = std::sin(static_cast<float>(3 * i + 1));
    positions.As<int32_t>()[0] = query;
    positions.As<int32_t>()[1] = key;
    EXPECT_TRUE(table.Rotate(context, x, positions, false).ok());
    double sum = 0;
    for (int i = 0; i < 8; ++i) sum += static_cast<double>(x.As<float>()[i]) * x.As<float>()[8 + i];
    return sum;
  };
  EXPECT_NEAR(dot(7, 3), dot(47, 43), 1e-5);
  EXPECT_NEAR(dot(0, 0), dot(20, 20), 1e-5);
  EXPECT_GT(std::fabs(dot(7, 3) - dot(7, 4)), 1e-3);
}

}  // namespace
}  // namespace weft::engine
