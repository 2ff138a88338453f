#include "worker/engine/optim/exact_norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

/// Numbers of very different sizes.
std::vector<float> Numbers(size_t count) {
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) {
    numbers.push_back(std::sin(static_cast<float>(i)) *
                      std::exp2f(static_cast<float>(i * 31 % 60) - 40));
  }
  return numbers;
}

ExactNorm NormOf(const std::vector<float>& numbers, size_t begin, size_t end) {
  ExactNorm norm;
  AddSquares(numbers.data() + begin, static_cast<int64_t>(end - begin), static_cast<int64_t>(begin),
             &norm);
  return norm;
}

TEST(ExactNorm, IsTheSumOfSquares) {
  const std::vector<float> numbers = Numbers(1000);
  long double expected = 0;
  for (const float number : numbers) expected += static_cast<long double>(number) * number;
  const double found = NormOf(numbers, 0, numbers.size()).squares.Value();
  EXPECT_NEAR(found / static_cast<double>(expected), 1, 1e-15);
}

TEST(ExactNorm, NoCutAtARunChangesABit) {
  const std::vector<float> numbers = Numbers(200003);
  const double whole = NormOf(numbers, 0, numbers.size()).squares.Value();
  for (const size_t cut : {size_t{16}, size_t{1600}, size_t{100000}, size_t{200000}}) {
    ExactNorm norm = NormOf(numbers, cut, numbers.size());
    norm.Add(NormOf(numbers, 0, cut));
    EXPECT_EQ(norm.squares.Value(), whole) << cut;
  }
}

TEST(ExactNorm, NorDoThreads) {
  const std::vector<float> numbers = Numbers(1 << 20);
  const int before = kernels::cpu::Threads();
  kernels::cpu::SetThreads(1);
  const double alone = NormOf(numbers, 0, numbers.size()).squares.Value();
  for (const int threads : {2, 3, 5}) {
    kernels::cpu::SetThreads(threads);
    EXPECT_EQ(NormOf(numbers, 0, numbers.size()).squares.Value(), alone) << threads;
  }
  kernels::cpu::SetThreads(before);
}

TEST(ExactNorm, CountsWhatIsNotFinite) {
  std::vector<float> numbers = Numbers(100);
  const ExactNorm finite = NormOf(numbers, 0, 100);
  EXPECT_EQ(finite.non_finite, 0);
  numbers[3] = std::numeric_limits<float>::infinity();
  numbers[4] = numbers[50] = std::numeric_limits<float>::quiet_NaN();
  const ExactNorm norm = NormOf(numbers, 0, 100);
  EXPECT_EQ(norm.non_finite, 3);
  EXPECT_TRUE(std::isfinite(norm.squares.Value()));
}

}  // namespace
}  // namespace weft::engine
