#include "kernels/orthogonalize/orthogonalize.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/orthogonalize/orthogonalize_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

std::vector<float> RandomMatrix(int64_t rows, int64_t columns, uint64_t seed) {
  PhiloxStream rng({.seed = seed});
  std::vector<float> matrix(rows * columns);
  for (float& value : matrix) value = static_cast<float>(rng.Normal());
  return matrix;
}

std::vector<double> Orthogonal(std::vector<float> matrix, int64_t rows, int64_t columns,
                               DType compute = DType::kF32) {
  std::vector<char> workspace(OrthogonalizeWorkspace(rows, columns, compute));
  Status status = Orthogonalize(
      {}, {.matrix = {matrix.data(), DType::kF32, {rows, columns}},
           .workspace = {workspace.data(), DType::kU8, {static_cast<int64_t>(workspace.size())}},
           .compute = compute});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return {matrix.begin(), matrix.end()};
}

TEST(Orthogonalize, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::OrthogonalizeCases()), "");
}

TEST(Orthogonalize, ProductsInBf16ComeWithinAFewPercent) {
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{33, 7}, {16, 40}, {1, 1}}) {
    const std::vector<float> matrix = RandomMatrix(rows, columns, 4);
    const std::vector<double> got = Orthogonal(matrix, rows, columns, DType::kBF16);
    const std::vector<double> expected =
        OrthogonalizeRef({matrix.begin(), matrix.end()}, rows, columns, 5);
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 0.05) << rows << "x" << columns;
  }
}

TEST(Orthogonalize, SingularValuesComeNearOne) {
  constexpr int64_t kRows = 24, kColumns = 64;
  const std::vector<double> x = Orthogonal(RandomMatrix(kRows, kColumns, 1), kRows, kColumns);
  const std::vector<double> gram =
      RefProduct(x, RefTranspose(x, kRows, kColumns), kRows, kColumns, kRows);
  // Eigenvalues of the Gram matrix lie within a row sum of its diagonal (Gershgorin), whose mean is
  // that of the squared singular values, each in [0.68, 1.13]^2.
  double trace = 0, off_diagonal = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kRows; ++j) {
      (i == j ? trace : off_diagonal) +=
          i == j ? gram[i * kRows + j] : std::pow(gram[i * kRows + j], 2);
    }
  }
  EXPECT_GT(trace / kRows, 0.68 * 0.68);
  EXPECT_LT(trace / kRows, 1.13 * 1.13);
  EXPECT_LT(std::sqrt(off_diagonal / kRows), 0.4);
}

TEST(Orthogonalize, DoesNotSeeScaleAndTurnsWithItsInput) {
  constexpr int64_t kSize = 12, kColumns = 20;
  const std::vector<float> matrix = RandomMatrix(kSize, kColumns, 2);
  const std::vector<double> plain = Orthogonal(matrix, kSize, kColumns);

  std::vector<float> scaled = matrix;
  for (float& value : scaled) value *= 4096;
  const std::vector<double> from_scaled = Orthogonal(scaled, kSize, kColumns);

  // A Householder reflection: orthogonal by construction.
  const std::vector<float> axis = RandomMatrix(kSize, 1, 3);
  double square = 0;
  for (float a : axis) square += double{a} * a;
  std::vector<double> turn(kSize * kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t j = 0; j < kSize; ++j) {
      turn[i * kSize + j] = (i == j ? 1.0 : 0.0) - 2.0 * axis[i] * axis[j] / square;
    }
  }
  const std::vector<double> turned =
      RefProduct(turn, {matrix.begin(), matrix.end()}, kSize, kSize, kColumns);
  const std::vector<double> from_turned =
      Orthogonal({turned.begin(), turned.end()}, kSize, kColumns);
  const std::vector<double> turned_plain = RefProduct(turn, plain, kSize, kSize, kColumns);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(from_scaled[i], plain[i], 1e-5);
    EXPECT_NEAR(from_turned[i], turned_plain[i], 1e-4);
  }
}

TEST(Orthogonalize, NothingComesOfNothing) {
  for (double value : Orthogonal(std::vector<float>(15, 0.0f), 3, 5)) EXPECT_EQ(value, 0.0);
}

TEST(Orthogonalize, RefusesArgumentsThatDoNotFit) {
  std::vector<float> matrix(6);
  std::vector<char> workspace(OrthogonalizeWorkspace(2, 3, DType::kF32));
  const TensorView view(matrix.data(), DType::kF32, {2, 3});
  const TensorView memory(workspace.data(), DType::kU8, {static_cast<int64_t>(workspace.size())});
  EXPECT_TRUE(Orthogonalize({}, {.matrix = view, .workspace = memory}).ok());
  EXPECT_EQ(Orthogonalize({}, {.matrix = view, .workspace = {}}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Orthogonalize({}, {.matrix = view, .workspace = memory, .iterations = 0}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(
      Orthogonalize({}, {.matrix = {matrix.data(), DType::kF32, {6}}, .workspace = memory}).code(),
      StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
