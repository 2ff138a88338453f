#include "kernels/norm_stat/norm_stat.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

struct Stat {
  double sum = -1;
  int64_t non_finite = -1;
};

Stat Measure(const std::vector<float>& x) {
  std::array<NormTensor, 1> tensors = {NormTensor{x.data(), static_cast<int64_t>(x.size())}};
  Stat stat;
  Status status = NormStat(
      {}, {.tensors = tensors, .sum_of_squares = &stat.sum, .non_finite = &stat.non_finite});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return stat;
}

TEST(NormStat, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::NormStatCases()), "");
}

TEST(NormStat, AnyNumberOfThreadsGivesTheSameBits) {
  PhiloxStream rng({.seed = 2});
  std::vector<float> x(100003);
  for (float& value : x) value = static_cast<float>(rng.Normal());
  int before = cpu::Threads();
  cpu::SetThreads(1);
  double single = Measure(x).sum;
  for (int threads : {2, 3, 5}) {
    cpu::SetThreads(threads);
    EXPECT_EQ(Measure(x).sum, single) << threads;
  }
  cpu::SetThreads(before);
}

TEST(NormStat, CountsNanAndInfinityWhereverTheyAre) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    std::vector<float> x(20001, 1.0f);
    x[0] = kInfinity;
    x[7] = std::numeric_limits<float>::quiet_NaN();
    x[20000] = -kInfinity;
    EXPECT_EQ(Measure(x).non_finite, 3);
    EXPECT_FALSE(std::isfinite(Measure(x).sum));
  }
}

TEST(NormStat, Bf16TensorsCountAsTheirValues) {
  PhiloxStream rng({.seed = 5});
  std::vector<BFloat16> x(40003);
  std::vector<float> wide;
  for (BFloat16& value : x) {
    value = ToBFloat16(static_cast<float>(rng.Normal()));
    wide.push_back(ToFloat(value));
  }
  const auto measure = [&] {
    const NormTensor tensor = {nullptr, static_cast<int64_t>(x.size()), x.data()};
    Stat stat;
    EXPECT_TRUE(NormStat({}, {std::span(&tensor, 1), &stat.sum, &stat.non_finite}).ok());
    return stat;
  };
  EXPECT_EQ(measure().sum, Measure(wide).sum);
  EXPECT_EQ(measure().non_finite, 0);
  x[20000] = ToBFloat16(std::numeric_limits<float>::infinity());
  x[40002] = ToBFloat16(std::nanf(""));
  EXPECT_EQ(measure().non_finite, 2);
}

TEST(NormStat, SquaresThatOverflowF32AreStillFinite) {
  Stat stat = Measure(std::vector<float>(100, 1e30f));
  EXPECT_EQ(stat.non_finite, 0);
  EXPECT_NEAR(stat.sum, 1e62, 1e56);
}

TEST(NormStat, RefusesArgumentsThatDoNotFit) {
  double sum = 0;
  int64_t non_finite = 0;
  std::array<NormTensor, 1> missing = {NormTensor{nullptr, 3}};
  EXPECT_EQ(
      NormStat({}, {.tensors = missing, .sum_of_squares = &sum, .non_finite = &non_finite}).code(),
      StatusCode::kInvalid);
  EXPECT_EQ(NormStat({}, {.sum_of_squares = &sum}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
