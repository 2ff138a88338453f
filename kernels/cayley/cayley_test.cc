#include "kernels/cayley/cayley.h"

#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cayley/cayley_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Cayley, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::CayleyCases()), "");
}

TEST(Cayley, IsTheIdentityAtZeroAndNearlyARotationNextToIt) {
  constexpr int64_t kSize = 6, kAbove = kSize * (kSize - 1) / 2;
  PhiloxStream random({.seed = 3});
  std::vector<float> q(kAbove, 0.0f), r(kSize * kSize);
  const auto transform = [&] {
    EXPECT_TRUE(CayleyForward({}, {{q.data(), DType::kF32, {1, kAbove}},
                                   {r.data(), DType::kF32, {kSize, kSize}}})
                    .ok());
  };
  transform();
  for (const float value : r) EXPECT_EQ(value, 0);
  for (float& value : q) value = static_cast<float>(0.02 * random.Normal());
  transform();
  for (int64_t i = 0; i < kSize; ++i) r[i * kSize + i] += 1;
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t j = 0; j < kSize; ++j) {
      double dot = 0;
      for (int64_t k = 0; k < kSize; ++k) dot += double{r[i * kSize + k]} * r[j * kSize + k];
      EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-4) << i << " " << j;
    }
  }
  EXPECT_GT(std::abs(r[1]), 1e-3);
}

TEST(Cayley, GradientsOfTheReferenceAreSlopes) {
  constexpr int64_t kSize = 4, kAbove = kSize * (kSize - 1) / 2;
  PhiloxStream random({.seed = 5});
  std::vector<double> q(kAbove), dr(kSize * kSize);
  for (double& value : q) value = 0.3 * random.Normal();
  for (double& value : dr) value = random.Normal();
  const auto loss = [&] {
    const RefSquare r = CayleyRef(q.data(), kSize);
    double sum = 0;
    for (size_t e = 0; e < r.size(); ++e) sum += r[e] * dr[e];
    return sum;
  };
  const std::vector<double> gradient = CayleyGradientRef(q.data(), dr.data(), kSize);
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < kAbove; ++i) {
    const double before = q[i];
    q[i] = before + kStep;
    const double up = loss();
    q[i] = before - kStep;
    const double down = loss();
    q[i] = before;
    EXPECT_NEAR(gradient[i], (up - down) / (2 * kStep), 1e-7) << i;
  }
}

TEST(Cayley, RefusesWhatDoesNotFit) {
  std::array<float, 12> q{}, r{};
  const auto view = [](std::array<float, 12>& of, const Shape& shape) {
    return TensorView(of.data(), DType::kF32, shape);
  };
  EXPECT_TRUE(CayleyForward({}, {view(q, {1, 3}), view(r, {3, 3})}).ok());
  EXPECT_EQ(CayleyForward({}, {view(q, {1, 4}), view(r, {3, 3})}).code(), StatusCode::kInvalid);
  EXPECT_EQ(CayleyForward({}, {view(q, {2, 3}), view(r, {3, 3})}).code(), StatusCode::kInvalid);
  EXPECT_EQ(CayleyForward({}, {view(q, {3}), view(r, {3, 3})}).code(), StatusCode::kInvalid);
  EXPECT_EQ(CayleyBackward({}, {view(q, {1, 3}), view(r, {3, 3}), view(q, {3, 1})}).code(),
            StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
