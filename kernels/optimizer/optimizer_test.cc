#include "kernels/optimizer/optimizer.h"

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/parallel.h"
#include "kernels/stochastic_round/stochastic_round_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

// One tensor with random content and three states of zeros.
struct OneTensor {
  explicit OneTensor(int64_t count, uint64_t seed = 3) : p(count), g(count) {
    PhiloxStream rng({.seed = seed});
    for (float& value : p) value = static_cast<float>(rng.Normal());
    for (float& value : g) value = static_cast<float>(rng.Normal());
    for (auto& state : states) state.assign(count, 0.0f);
  }

  UpdateTensor All() { return Part(0, static_cast<int64_t>(p.size())); }
  UpdateTensor Part(int64_t begin, int64_t count) {
    return {.parameter = p.data() + begin,
            .gradient = g.data() + begin,
            .state = {states[0].data() + begin, states[1].data() + begin, states[2].data() + begin},
            .count = count,
            .weight_decay = 0.1f};
  }

  std::vector<float> p, g;
  std::array<std::vector<float>, 3> states;
};

using RunRule = std::function<Status(const UpdateInputs&)>;

const std::vector<std::pair<const char*, RunRule>>& ElementwiseRules() {
  static const std::vector<std::pair<const char*, RunRule>> rules = {
      {"sgd",
       [](const UpdateInputs& in) {
         return Sgd({}, {in, 0.9f, true});
       }},
      {"adam", [](const UpdateInputs& in) { return Adam({}, {.update = in}); }},
      {"lion", [](const UpdateInputs& in) { return Lion({}, {.update = in}); }},
      {"schedule free",
       [](const UpdateInputs& in) {
         return ScheduleFreeAdamW({}, {.update = in, .average_weight = 0.5f});
       }},
  };
  return rules;
}

TEST(Optimizer, EveryRuleMatchesItsReference) {
  EXPECT_EQ(testing::CheckCases(testing::OptimizerCases()), "");
}

TEST(Optimizer, PartsOfATensorGiveTheSameBitsAsTheWhole) {
  constexpr int64_t kCount = 40001;
  for (const auto& [name, run] : ElementwiseRules()) {
    OneTensor whole(kCount), split(kCount);
    const std::array<UpdateTensor, 1> all = {whole.All()};
    const std::array<UpdateTensor, 3> parts = {split.Part(0, 7), split.Part(7, 20000),
                                               split.Part(20007, kCount - 20007)};
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(run({.tensors = all, .learning_rate = 0.1f, .gradient_limit = 1.0f}).ok());
      ASSERT_TRUE(run({.tensors = parts, .learning_rate = 0.1f, .gradient_limit = 1.0f}).ok());
    }
    EXPECT_EQ(whole.p, split.p) << name;
    EXPECT_EQ(whole.states, split.states) << name;
  }
}

TEST(Optimizer, AdaptiveRulesDoNotSeeTheScaleOfTheGradient) {
  const std::vector<std::pair<const char*, RunRule>> rules = {
      {"adam", [](const UpdateInputs& in) { return Adam({}, {.update = in, .epsilon = 0}); }},
      {"lamb", [](const UpdateInputs& in) { return Lamb({}, {.update = in, .epsilon = 0}); }},
      {"lion", [](const UpdateInputs& in) { return Lion({}, {.update = in}); }},
  };
  for (const auto& [name, run] : rules) {
    OneTensor plain(1000), scaled(1000);
    for (int step = 0; step < 5; ++step) {
      const std::array<UpdateTensor, 1> a = {plain.All()}, b = {scaled.All()};
      ASSERT_TRUE(run({.tensors = a, .learning_rate = 0.1f}).ok());
      ASSERT_TRUE(run({.tensors = b, .learning_rate = 0.1f, .gradient_scale = 1024.0f}).ok());
    }
    // A power of two changes no mantissa.
    EXPECT_EQ(plain.p, scaled.p) << name;
  }
}

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

TEST(Optimizer, AStepOfLambIsAsLongAsTheRateTimesTheParameter) {
  for (float factor : {0.001f, 1.0f, 1000.0f}) {
    OneTensor tensor(50000);
    for (float& value : tensor.g) value *= factor;
    const std::vector<float> before = tensor.p;
    const std::array<UpdateTensor, 1> tensors = {tensor.All()};
    ASSERT_TRUE(Lamb({}, {.update = {.tensors = tensors, .learning_rate = 0.25f}}).ok());
    std::vector<float> moved = tensor.p;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] -= before[i];
    EXPECT_NEAR(Norm(moved) / Norm(before), 0.25, 1e-6);
  }
}

TEST(Optimizer, LayerRatesOfZeroTensorsAreOne) {
  for (bool lamb : {false, true}) {
    OneTensor tensor(4);
    tensor.p.assign(4, 0.0f);
    tensor.g.assign(4, 2.0f);
    const std::array<UpdateTensor, 1> tensors = {tensor.All()};
    const UpdateInputs in = {.tensors = tensors, .learning_rate = 0.5f};
    ASSERT_TRUE((lamb ? Lamb({}, {.update = in, .epsilon = 0}) : Lars({}, {.update = in})).ok());
    EXPECT_FLOAT_EQ(tensor.p[0], lamb ? -0.5f : -1.0f);
  }
}

TEST(Optimizer, LionDoesNotMoveWhatHasNoGradient) {
  OneTensor tensor(3);
  tensor.p = {1, 2, 3};
  tensor.g = {0, -0.0f, 5};
  UpdateTensor one = tensor.All();
  one.weight_decay = 0;
  ASSERT_TRUE(Lion({}, {.update = {.tensors = {&one, 1}, .learning_rate = 0.5f}}).ok());
  EXPECT_EQ(tensor.p, (std::vector<float>{1, 2, 2.5f}));
}

TEST(Optimizer, ScheduleFreeWithoutBeta1IsPolyakAveragingOfThePlainRule) {
  constexpr int kSteps = 50;
  OneTensor tensor(64);
  tensor.states[0] = tensor.states[1] = tensor.p;  // x and z
  // RMSprop with the same second moment, and the mean of its iterates.
  std::vector<double> p(tensor.p.begin(), tensor.p.end()), v(64), sum(64);
  for (int step = 1; step <= kSteps; ++step) {
    UpdateTensor one = tensor.All();
    one.weight_decay = 0;
    for (size_t i = 0; i < p.size(); ++i) tensor.g[i] = static_cast<float>(p[i] - 1 + 0.1 * step);
    for (size_t i = 0; i < p.size(); ++i) {
      v[i] = 0.95 * v[i] + 0.05 * tensor.g[i] * tensor.g[i];
      p[i] -= 0.01 * tensor.g[i] / (std::sqrt(v[i] / (1 - std::pow(0.95, step))));
      sum[i] += p[i];
    }
    ASSERT_TRUE(ScheduleFreeAdamW({}, {.update = {.tensors = {&one, 1}, .learning_rate = 0.01f},
                                       .beta1 = 0,
                                       .beta2 = 0.95f,
                                       .epsilon = 0,
                                       .step = step,
                                       .average_weight = 1.0f / static_cast<float>(step)})
                    .ok());
  }
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(tensor.p[i], p[i], 1e-5);
    EXPECT_NEAR(tensor.states[0][i], sum[i] / kSteps, 1e-5);
  }
}

TEST(Optimizer, FirstStepOfAdamMovesByTheLearningRateAgainstTheGradient) {
  OneTensor tensor(2);
  tensor.p = {1, 1};
  tensor.g = {0.001f, -1000};
  UpdateTensor one = tensor.All();
  one.weight_decay = 0;
  ASSERT_TRUE(
      Adam({}, {.update = {.tensors = {&one, 1}, .learning_rate = 0.25f}, .epsilon = 0}).ok());
  EXPECT_NEAR(tensor.p[0], 0.75f, 1e-6);
  EXPECT_NEAR(tensor.p[1], 1.25f, 1e-6);
}

TEST(Optimizer, RefusesArgumentsThatDoNotFit) {
  const std::array<UpdateTensor, 1> missing = {UpdateTensor{.count = 2}};
  EXPECT_EQ(Adam({}, {.update = {.tensors = missing}}).ToString(),
            "INVALID: Adam: a tensor has no memory");
  for (const auto& [name, run] : ElementwiseRules()) {
    EXPECT_EQ(run({.tensors = missing}).code(), StatusCode::kInvalid) << name;
    EXPECT_EQ(run({.gradient_limit = 0}).code(), StatusCode::kInvalid) << name;
    EXPECT_TRUE(run({}).ok()) << name;
  }
  // A state that the rule keeps is missing.
  OneTensor tensor(2);
  UpdateTensor one = tensor.All();
  one.state[1] = nullptr;
  EXPECT_EQ(Lamb({}, {.update = {.tensors = {&one, 1}}}).code(), StatusCode::kInvalid);
  EXPECT_TRUE(Lion({}, {.update = {.tensors = {&one, 1}}}).ok());
  // Or is of another type.
  std::array<uint8_t, 2> bytes = {};
  one.state[1] = TensorView(bytes.data(), DType::kU8, {2});
  EXPECT_EQ(Lamb({}, {.update = {.tensors = {&one, 1}}}).ToString(),
            "INVALID: Lamb: a tensor has state that is not f32");
  EXPECT_EQ(Adam({}, {.step = 0}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Adam({}, {.beta2 = 1.0f}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Sgd({}, {.momentum = 1.0f}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Lars({}, {.update = {.gradient_limit = 1}}).code(), StatusCode::kInvalid);
  EXPECT_EQ(ScheduleFreeAdamW({}, {.average_weight = 2}).code(), StatusCode::kInvalid);
}

// Parameters in bf16 are those of an update in f32, rounded stochastically by (seed, step, site,
// index), with state as in f32: so for every rule, also where a tensor has several blocks.
TEST(Optimizer, Bf16ParametersAreF32UpdatesRoundedStochastically) {
  constexpr int64_t kCount = 40001;
  using Rule = std::function<Status(const UpdateInputs&)>;
  const Rule rules[] = {[](const UpdateInputs& update) {
                          return Sgd({}, {update, 0.9f, false});
                        },
                        [](const UpdateInputs& update) {
                          return Lars({}, {update, 0.9f, 0.5f, 1e-3f});
                        },
                        [](const UpdateInputs& update) { return Adam({}, {.update = update}); },
                        [](const UpdateInputs& update) { return Lamb({}, {.update = update}); },
                        [](const UpdateInputs& update) { return Lion({}, {.update = update}); }};
  PhiloxStream rng({.seed = 12});
  std::vector<BFloat16> start(kCount);
  std::vector<float> gradient(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    start[i] = ToBFloat16(static_cast<float>(rng.Normal()));
    gradient[i] = static_cast<float>(rng.Normal());
  }
  const PhiloxKey key = {.seed = 77, .step = 5, .site = 9};
  const int before = cpu::Threads();
  for (const Rule& rule : rules) {
    const auto run = [&](BFloat16* narrow, float* wide, std::vector<float>& state) {
      std::array<UpdateTensor, 1> tensors = {UpdateTensor{.parameter = wide,
                                                          .bf16_parameter = narrow,
                                                          .gradient = gradient.data(),
                                                          .count = kCount,
                                                          .weight_decay = 0.1f,
                                                          .rounding_site = key.site}};
      for (int k = 0; k < 3; ++k) tensors[0].state[k] = state.data() + k * kCount;
      Status status =
          rule({.tensors = tensors, .learning_rate = 0.01f, .seed = key.seed, .step = key.step});
      EXPECT_TRUE(status.ok()) << status.ToString();
    };
    std::vector<float> wide(kCount), wide_state(3 * kCount);
    for (int64_t i = 0; i < kCount; ++i) wide[i] = ToFloat(start[i]);
    run(nullptr, wide.data(), wide_state);
    const std::vector<double> expected =
        ref::StochasticRound(std::vector<double>(wide.begin(), wide.end()), key, 0);
    for (int threads : {1, 2, 3}) {
      cpu::SetThreads(threads);
      std::vector<BFloat16> narrow = start;
      std::vector<float> state(3 * kCount);
      run(narrow.data(), nullptr, state);
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(ToFloat(narrow[i]), expected[i]) << i;
      EXPECT_EQ(state, wide_state);
    }
  }
  cpu::SetThreads(before);
}

TEST(Optimizer, PartsOfABf16TensorAreUpdatedLikeTheWhole) {
  constexpr int64_t kCount = 30001, kCut = 17000;
  std::vector<float> gradient(kCount);
  PhiloxStream rng({.seed = 13});
  for (float& value : gradient) value = static_cast<float>(rng.Normal());
  const auto update = [&](const std::vector<int64_t>& cuts) {
    std::vector<BFloat16> p(kCount, ToBFloat16(0.75f));
    std::vector<float> m(kCount), v(kCount);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::array<UpdateTensor, 1> part = {
          UpdateTensor{.bf16_parameter = p.data() + cuts[i],
                       .gradient = gradient.data() + cuts[i],
                       .state = {m.data() + cuts[i], v.data() + cuts[i]},
                       .count = cuts[i + 1] - cuts[i],
                       .rounding_site = 3,
                       .first_element = cuts[i]}};
      const UpdateInputs inputs = {.tensors = part, .learning_rate = 1e-3f, .seed = 4, .step = 2};
      EXPECT_TRUE(Adam({}, {.update = inputs}).ok());
    }
    std::vector<uint16_t> bits;
    for (BFloat16 value : p) bits.push_back(value.bits);
    return bits;
  };
  const std::vector<uint16_t> whole = update({0, kCount});
  EXPECT_EQ(update({0, kCut, kCount}), whole);
  // Parts that begin within the four words of a Philox block, or have fewer elements.
  EXPECT_EQ(update({0, 1, 2, 6, 7, kCut + 1, kCut + 3, kCount}), whole);
}

}  // namespace
}  // namespace weft::kernels
