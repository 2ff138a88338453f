#include "worker/engine/growth/axis_map.h"

#include <cmath>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft::engine {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix Dense(const AxisMap& map) {
  Matrix dense;
  for (int64_t i = 0; i < map.size(); ++i) {
    std::vector<double>& row = dense.emplace_back(static_cast<size_t>(map.old_size()), 0.0);
    for (const AxisMap::Term& term : map[i]) row[static_cast<size_t>(term.old)] += term.factor;
  }
  return dense;
}

/// a b^T, or a b.
Matrix Product(const Matrix& a, const Matrix& b, bool transposed) {
  const size_t columns = transposed ? b.size() : b[0].size();
  Matrix product(a.size(), std::vector<double>(columns, 0.0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < columns; ++j) {
      for (size_t k = 0; k < a[i].size(); ++k) {
        product[i][j] += a[i][k] * (transposed ? b[j][k] : b[k][j]);
      }
    }
  }
  return product;
}

Matrix Unit(size_t size) {
  Matrix unit(size, std::vector<double>(size, 0.0));
  for (size_t i = 0; i < size; ++i) unit[i][i] = 1;
  return unit;
}

TEST(AxisMap, WrittenRepeatsOrTakesMeansAndReadDividesOrAdds) {
  EXPECT_EQ(Dense(AxisMap::Written(2, 4)), (Matrix{{1, 0}, {0, 1}, {1, 0}, {0, 1}}));
  EXPECT_EQ(Dense(AxisMap::Written(4, 2)), (Matrix{{0.5, 0, 0.5, 0}, {0, 0.5, 0, 0.5}}));
  EXPECT_EQ(Dense(AxisMap::Read(2, 4)), (Matrix{{0.5, 0}, {0, 0.5}, {0.5, 0}, {0, 0.5}}));
  EXPECT_EQ(Dense(AxisMap::Read(4, 2)), (Matrix{{1, 0, 1, 0}, {0, 1, 0, 1}}));
  EXPECT_EQ(Dense(AxisMap::Identity(3)), Unit(3));
}

TEST(AxisMap, APositionThatIsRepeatedMoreOftenIsDividedMore) {
  EXPECT_EQ(Dense(AxisMap::Read(2, 3)), (Matrix{{0.5, 0}, {0, 1}, {0.5, 0}}));
  EXPECT_EQ(Dense(AxisMap::Written(3, 2)), (Matrix{{0.5, 0, 0.5}, {0, 1, 0}}));
}

TEST(AxisMap, WhatIsWrittenRepeatedlyIsReadAsBefore) {
  for (const auto& [small, large] : {std::pair{2, 4}, {3, 12}, {5, 8}, {4, 4}}) {
    const Matrix written = Dense(AxisMap::Written(small, large));
    const Matrix read = Dense(AxisMap::Read(small, large));
    // Sum over the repetitions: read^T written.
    Matrix transposed(static_cast<size_t>(small), std::vector<double>(static_cast<size_t>(large)));
    for (size_t i = 0; i < read.size(); ++i) {
      for (size_t j = 0; j < read[i].size(); ++j) transposed[j][i] = read[i][j];
    }
    EXPECT_EQ(Product(transposed, written, false), Unit(static_cast<size_t>(small)));
    // Shrinking undoes growing.
    EXPECT_EQ(Product(Dense(AxisMap::Written(large, small)), written, false),
              Unit(static_cast<size_t>(small)));
    EXPECT_EQ(Product(Dense(AxisMap::Read(large, small)), read, false),
              Unit(static_cast<size_t>(small)));
  }
}

TEST(AxisMap, PartsLieOneUnderTheOther) {
  AxisMap map = AxisMap::Written(1, 2);
  map.Append(AxisMap::Read(1, 2));
  EXPECT_EQ(Dense(map), (Matrix{{1, 0}, {1, 0}, {0, 0.5}, {0, 0.5}}));
  EXPECT_EQ(Dense(map.Within(1, 3)), (Matrix{{0, 0}, {1, 0}, {0, 0.5}, {0, 0}}));
  EXPECT_EQ(Dense(map.Squared()), (Matrix{{1, 0}, {1, 0}, {0, 0.25}, {0, 0.25}}));
}

/// What the map makes of values.
std::vector<double> Applied(const AxisMap& map, const std::vector<double>& values) {
  std::vector<double> made;
  for (int64_t i = 0; i < map.size(); ++i) {
    double sum = 0;
    for (const AxisMap::Term& term : map[i]) {
      sum += term.factor * values[static_cast<size_t>(term.old)];
    }
    made.push_back(sum);
  }
  return made;
}

// torch.nn.functional.interpolate(mode="bilinear", align_corners=False) of PyTorch, in float64.
TEST(AxisMap, GridsAreResizedAsPyTorchDoes) {
  const std::vector<double> three = {0, 10, 1, 6, 3, 3, 6, 1, 10};
  const auto expect = [](const std::vector<double>& made, const std::vector<double>& truth) {
    ASSERT_EQ(made.size(), truth.size());
    for (size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i], truth[i], 1e-14) << i;
  };
  expect(Applied(AxisMap::Resized(2, 3), {0, 10, 1, 6}), {0, 5, 10, 0.5, 4.25, 8, 1, 3.5, 6});
  expect(Applied(AxisMap::Resized(3, 2), three), {3.1875, 3.1875, 4.875, 6.5625});
  expect(Applied(AxisMap::Resized(3, 5), three),
         {0, 4, 10, 4.6,  1,   2.4,  4.32, 7.2, 3.96, 1.8, 6,   4.8, 3,
          3, 3, 6,  4.32, 1.8, 5.04, 7.2,  6,   4,    1,   6.4, 10});
  EXPECT_EQ(Applied(AxisMap::Resized(3, 3), three), three);
}

TEST(AxisMap, ReadEvenlyHasTheFactorThatKeepsTheRootMeanSquare) {
  const auto factor = [](int64_t old_extent, int64_t new_extent) {
    const AxisMap map = AxisMap::ReadEvenly(old_extent, new_extent);
    EXPECT_EQ(map.size(), new_extent);
    EXPECT_EQ(map.old_size(), old_extent);
    for (int64_t i = 0; i < new_extent; ++i) {
      EXPECT_EQ(map[i].size(), 1u);
      EXPECT_EQ(map[i][0].old, i % old_extent);
      EXPECT_EQ(map[i][0].factor, map[0][0].factor);
    }
    return map[0][0].factor;
  };
  // 1 / sqrt(1 + 3c) with c new for each old position, up to 1, and 1 / (1 + c) beyond.
  EXPECT_EQ(factor(4, 4), 1);
  EXPECT_DOUBLE_EQ(factor(4, 5), 1 / std::sqrt(1.75));
  EXPECT_DOUBLE_EQ(factor(4, 6), 1 / std::sqrt(2.5));
  EXPECT_EQ(factor(4, 8), 0.5);
  EXPECT_DOUBLE_EQ(factor(4, 10), 1 / 2.5);
  EXPECT_EQ(factor(4, 16), 0.25);
  EXPECT_EQ(AxisMap::ReadEvenly(4, 6).Squared()[5][0].factor, factor(4, 6) * factor(4, 6));
}

/// Root mean square of sums over independent normal numbers that `columns` repeats, with weights
/// that `factors` divides, as a share of that of the sums before.
double RmsAfter(const AxisMap& columns, const AxisMap& factors) {
  PhiloxStream random(PhiloxKey{5, 0, 0});
  double before = 0, after = 0;
  for (int row = 0; row < 4000; ++row) {
    std::vector<double> x, w;
    double sum = 0;
    for (int64_t i = 0; i < columns.old_size(); ++i) {
      x.push_back(random.Normal());
      w.push_back(random.Normal());
      sum += x.back() * w.back();
    }
    before += sum * sum;
    double grown = 0;
    for (int64_t i = 0; i < columns.size(); ++i) {
      const AxisMap::Term &written = columns[i][0], &read = factors[i][0];
      grown += written.factor * x[static_cast<size_t>(written.old)] * read.factor *
               w[static_cast<size_t>(read.old)];
    }
    after += grown * grown;
  }
  return std::sqrt(after / before);
}

TEST(AxisMap, ReadEvenlyKeepsTheRootMeanSquareOfSums) {
  for (const int64_t wide : {64, 80, 96, 120, 128, 192}) {
    const AxisMap copies = AxisMap::Written(64, wide);
    EXPECT_NEAR(RmsAfter(copies, AxisMap::ReadEvenly(64, wide)), 1, 0.05) << wide;
  }
  EXPECT_GT(RmsAfter(AxisMap::Written(64, 96), AxisMap::Written(64, 96)), 1.4) << "not divided";
}

}  // namespace
}  // namespace weft::engine
