#include "common/exact_sum.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double SumOf(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.Add(term);
  return sum.Value();
}

/// Numbers of very different sizes and both signs: their order changes an ordinary sum.
std::vector<double> Terms(size_t count) {
  std::vector<double> terms;
  uint64_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double mantissa = static_cast<double>(static_cast<int64_t>(state >> 20)) - 8e12;
    terms.push_back(std::ldexp(mantissa, static_cast<int>(state >> 56) - 128));
  }
  return terms;
}

TEST(ExactSum, DoesNotRoundBeforeTheEnd) {
  EXPECT_EQ(SumOf({}), 0);
  EXPECT_EQ(SumOf({1e300, 1, -1e300}), 1);
  EXPECT_EQ(SumOf({1, 1e-300, -1}), 1e-300);
  EXPECT_EQ(SumOf({-1, -1e-20}), -1);
  EXPECT_EQ(SumOf({0x1p53, 1, 1}), 0x1p53 + 2) << "both would be lost in f64";
  EXPECT_EQ(SumOf({-0x1p53, -1, -1}), -0x1p53 - 2);
}

TEST(ExactSum, HasTheWholeRange) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  const double huge = std::numeric_limits<double>::max();
  EXPECT_EQ(SumOf({tiny}), tiny);
  EXPECT_EQ(SumOf({tiny, tiny, -tiny}), tiny);
  EXPECT_EQ(SumOf({huge, huge, -huge}), huge);
  EXPECT_EQ(SumOf({huge, tiny, -huge}), tiny);
  EXPECT_EQ(SumOf({huge, huge}), kInfinity);
}

TEST(ExactSum, TermsThatAreNotFiniteShow) {
  EXPECT_EQ(SumOf({1, kInfinity, -5}), kInfinity);
  EXPECT_EQ(SumOf({-kInfinity}), -kInfinity);
  EXPECT_TRUE(std::isnan(SumOf({kInfinity, 1, -kInfinity})));
  EXPECT_TRUE(std::isnan(SumOf({std::nan(""), 1})));
}

TEST(ExactSum, NeitherOrderNorGroupsMatter) {
  std::vector<double> terms = Terms(1000);
  const double expected = SumOf(terms);
  double rounded = 0;
  for (const double term : terms) rounded += term;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    for (size_t i = terms.size() - 1; i > 0; --i) {
      std::swap(terms[i], terms[Philox({.seed = seed}, i).v[0] % (i + 1)]);
    }
    EXPECT_EQ(SumOf(terms), expected) << "shuffle " << seed;
    for (const size_t groups : {2u, 3u, 8u}) {
      std::array<double, ExactSum::kParts> parts = {};
      ExactSum merged;
      for (size_t g = 0; g < groups; ++g) {
        ExactSum group;
        for (size_t i = g; i < terms.size(); i += groups) group.Add(terms[i]);
        merged.Add(group);
        const auto own = group.Parts();
        for (size_t p = 0; p < parts.size(); ++p) parts[p] += own[p];
      }
      EXPECT_EQ(merged.Value(), expected);
      EXPECT_EQ(ExactSum::FromParts(parts).Value(), expected);
    }
  }
}

TEST(ExactSum, IsTheNearestNumberOfSumsThatAreKnown) {
  // 2^-60 a million times is not exact in f64 next to 1, but its sum with it is known.
  ExactSum sum;
  sum.Add(1);
  for (int i = 0; i < 1 << 20; ++i) sum.Add(0x1p-60);
  EXPECT_EQ(sum.Value(), 1 + 0x1p-40);
}

}  // namespace
}  // namespace weft
