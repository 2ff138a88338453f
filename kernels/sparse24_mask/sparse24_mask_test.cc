#include "kernels/sparse24_mask/sparse24_mask.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/sparse24_mask/sparse24_patterns.h"

namespace weft::kernels {
namespace {

struct Weight {
  Weight(int64_t height, int64_t width, uint32_t seed)
      : rows(height), columns(width), values(height * width) {
    PhiloxStream rng({.seed = seed, .step = 0, .site = 1});
    for (float& value : values) value = static_cast<float>(rng.Normal());
  }
  TensorView view() { return {values.data(), DType::kF32, {rows, columns}}; }

  int64_t rows, columns;
  std::vector<float> values;
};

using Masks = std::vector<uint16_t>;

Masks TransposableOf(Weight& weight) {
  Masks mask(weight.rows * weight.columns / 16);
  const TensorView view(mask.data(), DType::kU16, {weight.rows / 4, weight.columns / 4});
  const Status status = TransposableMask({}, {.weight = weight.view(), .mask = view});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return mask;
}

Masks RowsOf(Weight& weight) {
  Masks mask(weight.rows * weight.columns / 16);
  const TensorView view(mask.data(), DType::kU16, {weight.rows / 4, weight.columns / 4});
  const Status status = RowMask({}, {.weight = weight.view(), .mask = view});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return mask;
}

// Element (r, c) of block i.
float At(const Weight& weight, int64_t block, int r, int c) {
  const int64_t width = weight.columns / 4;
  return weight.values[(block / width * 4 + r) * weight.columns + block % width * 4 + c];
}

float Kept(const Weight& weight, int64_t block, uint16_t mask) {
  float rows[4] = {};
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      if ((mask >> (4 * r + c) & 1) != 0) rows[r] += std::abs(At(weight, block, r, c));
    }
  }
  return (rows[0] + rows[1]) + (rows[2] + rows[3]);
}

double KeptShare(const Weight& weight, const Masks& masks) {
  double kept = 0, all = 0;
  for (size_t i = 0; i < masks.size(); ++i) kept += Kept(weight, static_cast<int64_t>(i), masks[i]);
  for (const float value : weight.values) all += std::abs(value);
  return kept / all;
}

int InRow(uint16_t mask, int row) {
  return std::popcount(static_cast<unsigned>(mask >> (4 * row) & 15));
}
int InColumn(uint16_t mask, int column) {
  return std::popcount(static_cast<unsigned>(mask >> column & 0x1111));
}

TEST(Sparse24Mask, ThereAreNinetyTransposableBlocks) {
  int count = 0;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const auto mask = static_cast<uint16_t>(bits);
    bool fits = true;
    for (int i = 0; i < 4; ++i) fits &= InRow(mask, i) == 2 && InColumn(mask, i) == 2;
    if (!fits) continue;
    ASSERT_LT(count, kTransposablePatterns);
    EXPECT_EQ(kTransposable.of[count++].bits, mask);
  }
  EXPECT_EQ(count, 90);
}

// The first of those with the largest sum, in f32 and in the order of additions that the kernels
// have, so that every instruction set is held to the same bits.
TEST(Sparse24Mask, IsTheBestOfAllBlocksOnEveryInstructionSet) {
  for (const int64_t columns : {4, 12, 36, 64, 172}) {
    Weight weight(12, columns, static_cast<uint32_t>(columns));
    // Equal sums.
    for (int64_t i = 0; i < columns; i += 2) weight.values[i] = 0.5f;
    Masks best;
    for (int64_t block = 0; block < weight.rows * columns / 16; ++block) {
      const TransposablePattern* first =
          std::max_element(kTransposable.of, kTransposable.of + kTransposablePatterns,
                           [&](const TransposablePattern& a, const TransposablePattern& b) {
                             return Kept(weight, block, a.bits) < Kept(weight, block, b.bits);
                           });
      best.push_back(first->bits);
    }
    for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
      cpu::ScopedIsa isa(static_cast<cpu::Isa>(level));
      EXPECT_EQ(TransposableOf(weight), best) << columns << " columns, instruction set " << level;
    }
  }
}

// The shares are those of a normal distribution: this project's own enumeration, to three digits.
TEST(Sparse24Mask, KeepsTheKnownShareOfMagnitude) {
  Weight weight(1024, 1024, 5);
  EXPECT_NEAR(KeptShare(weight, TransposableOf(weight)), 0.703, 0.002);
  EXPECT_NEAR(KeptShare(weight, RowsOf(weight)), 0.745, 0.002);
}

/// Takes the largest magnitude that still fits, again and again; what is left may fit nowhere.
uint16_t GreedyBlock(const Weight& weight, int64_t block) {
  std::array<int, 16> order{};
  std::iota(order.begin(), order.end(), 0);
  const auto magnitude = [&](int i) { return std::abs(At(weight, block, i / 4, i % 4)); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return magnitude(a) > magnitude(b); });
  int mask = 0;
  for (const int i : order) {
    const auto so_far = static_cast<uint16_t>(mask);
    if (InRow(so_far, i / 4) < 2 && InColumn(so_far, i % 4) < 2) mask |= 1 << i;
  }
  return static_cast<uint16_t>(mask);
}

// As above: the enumeration's share of a greedy choice, which leaves some blocks with seven.
TEST(Sparse24Mask, KeepsMoreThanAGreedyChoice) {
  Weight weight(1024, 1024, 5);
  const Masks best = TransposableOf(weight), rows = RowsOf(weight);
  Masks greedy;
  double short_of_eight = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    greedy.push_back(GreedyBlock(weight, block));
    const bool is_short = std::popcount(static_cast<unsigned>(greedy[i])) < 8;
    short_of_eight += is_short ? 1 : 0;
    const double kept = Kept(weight, block, best[i]);
    // Seven that are no part of any eight may be larger, now and then.
    if (!is_short) {
      ASSERT_LE(Kept(weight, block, greedy[i]), kept + 1e-5);
    }
    ASSERT_LE(kept, Kept(weight, block, rows[i]) + 1e-5);
  }
  EXPECT_NEAR(KeptShare(weight, greedy), 0.692, 0.002);
  EXPECT_NEAR(short_of_eight / static_cast<double>(best.size()), 0.158, 0.005);
}

TEST(Sparse24Mask, RowsKeepTheirTwoLargest) {
  Weight weight(8, 52, 3);
  weight.values[0] = weight.values[1] = weight.values[2] = weight.values[3] = -1;  // the first two
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    cpu::ScopedIsa isa(static_cast<cpu::Isa>(level));
    const Masks masks = RowsOf(weight);
    EXPECT_EQ(masks[0] & 15, 3);
    for (size_t block = 0; block < masks.size(); ++block) {
      for (int r = 0; r < 4; ++r) {
        ASSERT_EQ(InRow(masks[block], r), 2);
        float least_kept = std::numeric_limits<float>::infinity(), most_dropped = 0;
        for (int c = 0; c < 4; ++c) {
          const float value = std::abs(At(weight, static_cast<int64_t>(block), r, c));
          if ((masks[block] >> (4 * r + c) & 1) != 0) {
            least_kept = std::min(least_kept, value);
          } else {
            most_dropped = std::max(most_dropped, value);
          }
        }
        EXPECT_GE(least_kept, most_dropped);
      }
    }
  }
}

TEST(Sparse24Mask, AnythingButNumbersStillGivesTwo) {
  Weight weight(4, 64, 9);
  PhiloxStream rng({.seed = 3, .step = 0, .site = 1});
  for (float& value : weight.values) {
    switch (rng.Below(4)) {
      case 0:
        value = std::nanf("");
        break;
      case 1:
        value = -std::numeric_limits<float>::infinity();
        break;
      case 2:
        value = 0;
        break;
      default:
        break;
    }
  }
  for (const Masks& masks : {TransposableOf(weight), RowsOf(weight)}) {
    for (const uint16_t mask : masks) {
      for (int r = 0; r < 4; ++r) EXPECT_EQ(InRow(mask, r), 2);
    }
  }
  for (const uint16_t mask : TransposableOf(weight)) {
    for (int c = 0; c < 4; ++c) EXPECT_EQ(InColumn(mask, c), 2);
  }
}

TEST(Sparse24Mask, CountsWhatChanged) {
  Weight weight(8, 16, 11);
  Masks mask = TransposableOf(weight);
  const Masks before = mask;
  std::vector<int32_t> flips = {-1, -1};
  const TensorView view(mask.data(), DType::kU16, {2, 4});
  const TensorView counts(flips.data(), DType::kI32, {2});
  const auto search = [&] {
    return TransposableMask({}, {.weight = weight.view(), .mask = view, .flips = counts});
  };
  ASSERT_TRUE(search().ok());
  EXPECT_EQ(flips, (std::vector<int32_t>{0, 0}));
  for (int64_t i = 4 * 16; i < 8 * 16; ++i) weight.values[i] = 1 / weight.values[i];
  ASSERT_TRUE(search().ok());
  int changed = 0;
  for (int i = 4; i < 8; ++i) {
    changed += std::popcount(static_cast<uint16_t>(mask[i] ^ before[i]));
  }
  EXPECT_EQ(flips, (std::vector<int32_t>{0, changed}));
  EXPECT_GT(changed, 8);
}

TEST(Sparse24Mask, ReadsBFloat16AndStridedRows) {
  Weight weight(8, 40, 13);
  std::vector<BFloat16> rounded(8 * 48);
  Weight same(8, 40, 13);
  for (int64_t r = 0; r < 8; ++r) {
    for (int64_t c = 0; c < 40; ++c) {
      rounded[r * 48 + c] = ToBFloat16(weight.values[r * 40 + c]);
      same.values[r * 40 + c] = ToFloat(rounded[r * 48 + c]);
    }
  }
  TensorView view(rounded.data(), DType::kBF16, {8, 40});
  view.row_stride = 48;
  Masks mask(20);
  const TensorView to(mask.data(), DType::kU16, {2, 10});
  ASSERT_TRUE(TransposableMask({}, {.weight = view, .mask = to}).ok());
  EXPECT_EQ(mask, TransposableOf(same));
  ASSERT_TRUE(RowMask({}, {.weight = view, .mask = to}).ok());
  EXPECT_EQ(mask, RowsOf(same));
}

TEST(SoftThreshold, TakesTheThirdOffTheTwoLargest) {
  std::vector<float> weight = {3, -1,    0.5f,          -4,    0, 0, 2, 0, 1, 1, 1,
                               1, -0.5f, std::nanf(""), 0.25f, 1};
  const std::vector<float> expected = {4, 0, 0, -6, 0, 0, 4, 0, 0, 0, 0, 0, -0.5f, 0, 0, 1.5f};
  std::vector<float> y(16);
  ASSERT_TRUE(SoftThreshold({}, {.weight = {weight.data(), DType::kF32, {4, 4}},
                                 .y = {y.data(), DType::kF32, {4, 4}},
                                 .scale = 2})
                  .ok());
  EXPECT_EQ(y, expected);
}

// Where a weight is not 0 is what the mask of rows keeps, unless magnitudes are equal.
TEST(SoftThreshold, KeepsWhatTheMaskOfRowsKeeps) {
  Weight weight(8, 40, 17);
  std::vector<float> y(8 * 40);
  ASSERT_TRUE(
      SoftThreshold({}, {.weight = weight.view(), .y = {y.data(), DType::kF32, {8, 40}}}).ok());
  const Masks mask = RowsOf(weight);
  for (int64_t i = 0; i < 8 * 40; ++i) {
    const int64_t row = i / 40, column = i % 40;
    const uint16_t block = mask[row / 4 * 10 + column / 4];
    EXPECT_EQ(y[i] != 0, (block >> (4 * (row % 4) + column % 4) & 1) != 0) << i;
  }
}

TEST(Sparse24Mask, RefusesArgumentsThatDoNotFit) {
  std::vector<float> memory(64);
  std::vector<uint16_t> bits(8);
  const TensorView mask(bits.data(), DType::kU16, {1, 2});
  EXPECT_EQ(TransposableMask({}, {.weight = {memory.data(), DType::kF32, {4, 6}}, .mask = mask})
                .ToString(),
            "INVALID: TransposableMask: the weight is no matrix whose sizes are multiples of 4");
  EXPECT_EQ(RowMask({}, {.weight = {memory.data(), DType::kF32, {4, 12}}, .mask = mask}).code(),
            StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
