#include "worker/engine/nn/piecewise_norm.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/norm_stat/norm_stat.h"

namespace weft::engine {
namespace {

using Range = ParameterSet::Range;

constexpr int64_t kBlock = kernels::kNormStatBlock;

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>((i * 2654435761u) % 1000003) * 1e-3f - 400;
  }
  return numbers;
}

/// What the kernel says of these tensors of `numbers`.
std::pair<double, int64_t> Expected(const std::vector<float>& numbers,
                                    const std::vector<Range>& ranges) {
  std::vector<kernels::NormTensor> tensors;
  for (const Range& range : ranges) tensors.push_back({numbers.data() + range.begin, range.size()});
  std::pair<double, int64_t> sums;
  EXPECT_TRUE(kernels::NormStat({}, {tensors, &sums.first, &sums.second}).ok());
  return sums;
}

TEST(PiecewiseNormTest, HasTheBitsOfTheKernelWhateverThePiecesAndTheirOrder) {
  std::vector<float> numbers = Numbers(5 * kBlock + 77);
  numbers[3 * kBlock + 5] = std::numeric_limits<float>::infinity();
  const auto size = std::ssize(numbers);
  // One tensor; some that are in another order than they count, and leave out numbers.
  const std::vector<std::vector<Range>> ways = {
      {{0, size}}, {{2 * kBlock + 9, size}, {0, 100}, {200, 2 * kBlock + 3}}};
  for (const std::vector<Range>& tensors : ways) {
    PiecewiseNorm norm(tensors);
    EXPECT_FALSE(norm.complete());
    norm.Start();
    // From the last one on, as a backward pass goes.
    const std::vector<int64_t> cuts = {0, 60, kBlock - 1, kBlock + 8, 4 * kBlock, size};
    for (size_t i = cuts.size() - 1; i > 0; --i) {
      EXPECT_FALSE(norm.complete());
      ASSERT_TRUE(norm.Take({cuts[i - 1], cuts[i]}, numbers.data() + cuts[i - 1]).ok());
    }
    EXPECT_TRUE(norm.complete());
    const auto [squares, non_finite] = Expected(numbers, tensors);
    EXPECT_EQ(norm.SumOfSquares(), squares);
    EXPECT_EQ(norm.NonFinite(), non_finite);
  }
}

TEST(PiecewiseNormTest, WhatComesAgainReplacesWhatHasCome) {
  std::vector<float> numbers = Numbers(3 * kBlock);
  PiecewiseNorm norm({{0, 3 * kBlock}});
  norm.Start();
  for (int pass = 0; pass < 2; ++pass) {
    for (float& number : numbers) number += 1;
    for (const int64_t begin : {int64_t{0}, kBlock + 100}) {
      const int64_t end = begin == 0 ? kBlock + 100 : 3 * kBlock;
      ASSERT_TRUE(norm.Take({begin, end}, numbers.data() + begin).ok());
    }
  }
  EXPECT_TRUE(norm.complete());
  EXPECT_EQ(norm.SumOfSquares(), Expected(numbers, {{0, 3 * kBlock}}).first);
  norm.Stop();
  EXPECT_FALSE(norm.complete());
}

}  // namespace
}  // namespace weft::engine
