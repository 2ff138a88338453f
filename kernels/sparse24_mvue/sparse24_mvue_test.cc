#include "kernels/sparse24_mvue/sparse24_mvue.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"

namespace weft::kernels {
namespace {

constexpr MvueDraw kDraws[] = {MvueDraw::kSequential, MvueDraw::kMinimumVariance};

// S(x) of x [rows, columns].
std::vector<float> Estimate(MvueDraw draw, std::vector<float> x, int64_t columns,
                            PhiloxKey key = {.seed = 5, .step = 1, .site = 2}) {
  const int64_t rows = static_cast<int64_t>(x.size()) / columns;
  const TensorView view(x.data(), DType::kF32, {rows, columns});
  const Status status = Mvue({}, {.x = view, .y = view, .draw = draw, .key = key});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return x;
}

// The same group many times, one a column.
std::vector<float> Repeated(const std::array<float, 4>& group, int64_t count) {
  std::vector<float> x;
  for (const float value : group) x.insert(x.end(), count, value);
  return x;
}

TEST(Mvue, KeepsEachWithTheProbabilityOfTheMethod) {
  const std::array<float, 4> group = {3, -1, 0.5f, 0.1f};
  constexpr int64_t kCount = 1 << 19;
  for (const MvueDraw draw : kDraws) {
    // The sequential draw gives t_i + a_i sum over j != i of k_j, worked out by hand.
    const std::array<double, 4> expected =
        draw == MvueDraw::kSequential ? std::array<double, 4>{0.9274, 0.6563, 0.3451, 0.0712}
                                      : std::array<double, 4>{1, 1 / 1.6, 0.5 / 1.6, 0.1 / 1.6};
    const std::vector<float> y = Estimate(draw, Repeated(group, kCount), kCount);
    for (int r = 0; r < 4; ++r) {
      double kept = 0, sum = 0;
      for (int64_t c = 0; c < kCount; ++c) {
        const float value = y[r * kCount + c];
        kept += value != 0;
        sum += value;
        if (value != 0) {
          ASSERT_NEAR(value, group[r] / expected[r], 2e-3 * std::abs(group[r] / expected[r]));
        }
      }
      const double p = expected[r];
      // Four standard deviations of the binomial distribution, and the four digits of p.
      const double deviation = 4 * std::sqrt(p * (1 - p) / kCount) + 1e-4;
      EXPECT_NEAR(kept / kCount, p, deviation) << "row " << r;
      EXPECT_NEAR(sum / kCount, group[r], std::abs(group[r]) * deviation / p) << "row " << r;
    }
  }
}

TEST(Mvue, KeepsTwoOfFour) {
  PhiloxStream rng({.seed = 1, .step = 0, .site = 1});
  constexpr int64_t kColumns = 4099;
  std::vector<float> x(8 * kColumns);
  for (float& value : x) value = static_cast<float>(rng.Normal());
  for (const MvueDraw draw : kDraws) {
    for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
      cpu::ScopedIsa isa(static_cast<cpu::Isa>(level));
      const std::vector<float> y = Estimate(draw, x, kColumns);
      for (int64_t g = 0; g < 2; ++g) {
        for (int64_t c = 0; c < kColumns; ++c) {
          int kept = 0;
          for (int64_t r = 0; r < 4; ++r) kept += y[(4 * g + r) * kColumns + c] != 0;
          ASSERT_EQ(kept, 2) << "column " << c;
        }
      }
    }
  }
}

TEST(Mvue, HasTheSameBitsOnEveryInstructionSet) {
  PhiloxStream rng({.seed = 6, .step = 0, .site = 1});
  constexpr int64_t kColumns = 20'003;
  std::vector<float> x(4 * kColumns);
  for (float& value : x) value = static_cast<float>(rng.Normal());
  for (const MvueDraw draw : kDraws) {
    const std::vector<float> best = Estimate(draw, x, kColumns);
    for (int level = 0; level < static_cast<int>(cpu::ProcessIsa()); ++level) {
      cpu::ScopedIsa isa(static_cast<cpu::Isa>(level));
      EXPECT_EQ(Estimate(draw, x, kColumns), best) << "instruction set " << level;
    }
  }
}

// Relative variance of groups of a normal distribution.
TEST(Mvue, HasTheKnownVariance) {
  PhiloxStream rng({.seed = 2, .step = 0, .site = 1});
  constexpr int64_t kColumns = 1 << 18;
  std::vector<float> x(4 * kColumns);
  for (float& value : x) value = static_cast<float>(rng.Normal());
  for (const MvueDraw draw : kDraws) {
    const std::vector<float> y = Estimate(draw, x, kColumns);
    double error = 0, square = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += (y[i] - x[i]) * (y[i] - x[i]);
      square += x[i] * x[i];
    }
    EXPECT_NEAR(error / square, draw == MvueDraw::kSequential ? 0.502 : 0.474, 0.004);
  }
}

TEST(Mvue, GroupsOfZerosAndOfOneNumberStay) {
  for (const MvueDraw draw : kDraws) {
    EXPECT_EQ(Estimate(draw, Repeated({0, 0, 0, 0}, 20), 20), Repeated({0, 0, 0, 0}, 20));
    const std::vector<float> y = Estimate(draw, Repeated({0, 0, -0.25f, 0}, 20), 20);
    for (int64_t i = 0; i < 80; ++i) {
      EXPECT_NEAR(y[i], i / 20 == 2 ? -0.25f : 0.0f, 1e-6) << i;
    }
    // Two numbers are both kept.
    const std::vector<float> two = Estimate(draw, Repeated({2, 0, 0, 2}, 20), 20);
    for (int64_t i = 0; i < 80; ++i) {
      EXPECT_NEAR(two[i], i / 20 == 0 || i / 20 == 3 ? 2.0f : 0.0f, 1e-5) << i;
    }
  }
}

TEST(Mvue, NumbersOfAnySizeAreDrawn) {
  for (const MvueDraw draw : kDraws) {
    for (const float scale : {1e-25f, 1e-10f, 1e10f, 1e30f}) {
      const std::vector<float> y =
          Estimate(draw, Repeated({scale, -2 * scale, scale / 64, scale}, 64), 64);
      for (const float value : y) {
        ASSERT_TRUE(std::isfinite(value));
        ASSERT_LE(std::abs(value), 4 * scale);
      }
    }
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {infinity, std::nanf("")}) {
      for (const float value : Estimate(draw, Repeated({1, bad, 1, 1}, 4), 4)) {
        EXPECT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST(Mvue, PartsOfRowsDrawWhatAllDraw) {
  PhiloxStream rng({.seed = 4, .step = 0, .site = 1});
  std::vector<float> x(22 * 9);
  for (float& value : x) value = static_cast<float>(rng.Normal());
  const PhiloxKey key = {.seed = 1, .step = 0, .site = 3};
  const uint32_t step = 77;
  const auto draw = [&](std::vector<float>& data, int64_t first, int64_t rows) {
    const TensorView view(data.data() + first * 9, DType::kF32, {rows, 9});
    return Mvue({}, {.x = view, .y = view, .key = key, .step = &step, .first_row = first});
  };
  std::vector<float> whole = x, parts = x;
  ASSERT_TRUE(draw(whole, 0, 22).ok());
  ASSERT_TRUE(draw(parts, 0, 8).ok());
  ASSERT_TRUE(draw(parts, 8, 14).ok());
  EXPECT_EQ(parts, whole);
  std::vector<float> columns = x;
  for (const auto& [first, count] : {std::pair{0, 5}, std::pair{5, 4}}) {
    TensorView part(columns.data() + first, DType::kF32, {22, count});
    part.row_stride = 9;
    ASSERT_TRUE(Mvue({}, {.x = part,
                          .y = part,
                          .key = key,
                          .step = &step,
                          .first_column = first,
                          .all_columns = 9})
                    .ok());
  }
  EXPECT_EQ(columns, whole);
  // The last two rows are no group.
  EXPECT_TRUE(std::equal(whole.begin() + 20 * 9, whole.end(), x.begin() + 20 * 9));
  PhiloxKey stepped = key;
  stepped.step = step;
  EXPECT_EQ(Estimate(MvueDraw::kMinimumVariance, x, 9, stepped), whole);
}

TEST(Mvue, RefusesArgumentsThatDoNotFit) {
  std::array<float, 16> memory{};
  const TensorView x(memory.data(), DType::kF32, {4, 4});
  EXPECT_EQ(Mvue({}, {.x = x, .y = x, .key = {}, .first_row = 2}).ToString(),
            "INVALID: Mvue: first_row is not a multiple of 4");
  EXPECT_EQ(Mvue({}, {.x = x, .y = x, .key = {}, .first_column = 1, .all_columns = 4}).ToString(),
            "INVALID: Mvue: the columns are none of all_columns");
}

}  // namespace
}  // namespace weft::kernels
