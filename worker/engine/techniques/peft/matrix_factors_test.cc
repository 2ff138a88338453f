// The largest singular values of matrices that are made of known ones.
#include "worker/engine/techniques/peft/matrix_factors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/parallel.h"
#include "worker/engine/techniques/singular_vectors.h"
#include "worker/engine/testing/float64_matrices.h"

namespace weft::engine {
namespace {

/// Orthonormal rows [count, length].
Doubles OrthonormalRows(int64_t count, int64_t length, uint64_t seed) {
  Doubles rows = AsDoubles(Normal(static_cast<size_t>(count * length), seed));
  const auto dot = [&](int64_t i, int64_t k) {
    double sum = 0;
    for (int64_t c = 0; c < length; ++c) sum += rows[i * length + c] * rows[k * length + c];
    return sum;
  };
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < 2 * i; ++k) {  // twice
      const double share = dot(i, k % i);
      for (int64_t c = 0; c < length; ++c) rows[i * length + c] -= share * rows[k % i * length + c];
    }
    const double size = std::sqrt(dot(i, i));
    for (int64_t c = 0; c < length; ++c) rows[i * length + c] /= size;
  }
  return rows;
}

/// A matrix by its singular values.
struct Known {
  int64_t rows = 0, columns = 0;
  Doubles values, left, right;

  Known(int64_t r, int64_t c, const std::function<double(int64_t)>& value) : rows(r), columns(c) {
    const int64_t count = std::min(rows, columns);
    for (int64_t i = 0; i < count; ++i) values.push_back(value(i));
    left = OrthonormalRows(count, rows, 1);
    right = OrthonormalRows(count, columns, 2);
  }
  /// The sum of the first `rank` products of their vectors.
  DoubleMatrix OfRank(int64_t rank) const {
    DoubleMatrix sum(rows, columns);
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t i = 0; i < rows; ++i) {
        const double factor = values[k] * left[k * rows + i];
        for (int64_t c = 0; c < columns; ++c) sum.row(i)[c] += factor * right[k * columns + c];
      }
    }
    return sum;
  }
  DoubleMatrix All() const { return OfRank(std::ssize(values)); }
};

DoubleMatrix RandomMatrix(int64_t rows, int64_t columns, uint64_t seed) {
  DoubleMatrix matrix(rows, columns);
  matrix.values = AsDoubles(Normal(static_cast<size_t>(rows * columns), seed));
  return matrix;
}

/// By the eigenvectors of matrix^T matrix.
DoubleMatrix NearestProduct(const DoubleMatrix& matrix, int64_t rank) {
  const SingularVectors vectors = NearestOfRank(matrix.values, matrix.rows, matrix.columns, rank);
  DoubleMatrix product(matrix.rows, matrix.columns);
  product.values = Times(Transposed(vectors.left, rank, matrix.rows), vectors.right, matrix.rows,
                         rank, matrix.columns);
  return product;
}

// Each has half of every singular value.
void ExpectHalves(const MatrixFactors& factors, const Doubles& values, int64_t rank) {
  for (int64_t k = 0; k < rank; ++k) {
    double of_a = 0, of_b = 0;
    for (int64_t i = 0; i < factors.a.columns; ++i) of_a += std::pow(factors.a.row(k)[i], 2);
    for (int64_t i = 0; i < factors.b.rows; ++i) of_b += std::pow(factors.b.row(i)[k], 2);
    EXPECT_NEAR(of_a, values[k], 1e-9 * values[k]) << k;
    EXPECT_NEAR(of_b, values[k], 1e-9 * values[k]) << k;
  }
}

TEST(LargestSingularValuesTest, AreThoseThatAMatrixIsMadeOfInFewProducts) {
  constexpr int64_t kRank = 4;
  const struct {
    const char* name;
    double (*value)(int64_t i);
    int64_t most_products;
  } spectra[] = {
      {"falling slowly", [](int64_t i) { return std::pow(i + 1, -0.3); }, 30},
      {"falling fast", [](int64_t i) { return std::pow(0.8, i); }, 12},
      {"one far above", [](int64_t i) { return i == 0 ? 1e4 : std::pow(i + 1, -0.3); }, 40},
      {"pairs",
       [](int64_t i) {
         const int64_t pair = i / 2;
         return std::pow(pair + 1, -0.5);
       },
       26},
      {"nearly flat", [](int64_t i) { return 1 + 0.2 * std::exp(-0.1 * static_cast<double>(i)); },
       60},
      {"of rank six", [](int64_t i) { return i < 6 ? 7.0 - static_cast<double>(i) : 0.0; }, 6},
  };
  for (const auto& spectrum : spectra) {
    for (const auto& [rows, columns] : {std::pair(240, 180), std::pair(150, 200)}) {
      SCOPED_TRACE(std::string(spectrum.name) + ", " + std::to_string(rows) + " rows");
      const Known known(rows, columns, spectrum.value);
      const MatrixFactors factors = LargestSingularValues(known.All(), kRank);
      EXPECT_LT(Difference(Times(factors.b, factors.a).values, known.OfRank(kRank).values), 1e-5);
      ExpectHalves(factors, known.values, kRank);
      EXPECT_LE(factors.products, spectrum.most_products);
    }
  }
}

// Whose singular values are close to each other.
TEST(LargestSingularValuesTest, OfARandomMatrixAreThoseOfItsEigenvectors) {
  const DoubleMatrix matrix = RandomMatrix(300, 200, 3);
  const MatrixFactors factors = LargestSingularValues(matrix, 8);
  EXPECT_LT(Difference(Times(factors.b, factors.a).values, NearestProduct(matrix, 8).values), 1e-5);
  EXPECT_LE(factors.products, 60);
}

TEST(LargestSingularValuesTest, OfSmallMatricesAreFoundAtOnce) {
  for (const auto& [rows, columns] : {std::pair(40, 12), std::pair(12, 40), std::pair(5, 7)}) {
    SCOPED_TRACE(rows);
    const DoubleMatrix matrix = RandomMatrix(rows, columns, 4);
    const MatrixFactors factors = LargestSingularValues(matrix, 4);
    EXPECT_LT(Difference(Times(factors.b, factors.a).values, NearestProduct(matrix, 4).values),
              1e-7);
    EXPECT_EQ(factors.products, 1);
  }
}

TEST(LargestSingularValuesTest, OfNothingAreNothing) {
  const MatrixFactors factors = LargestSingularValues(DoubleMatrix(100, 80), 2);
  for (const double value : factors.a.values) EXPECT_EQ(value, 0);
  for (const double value : factors.b.values) EXPECT_EQ(value, 0);
}

TEST(LargestSingularValuesTest, AreTheSameBitsWithAnyNumberOfThreads) {
  const DoubleMatrix matrix = RandomMatrix(300, 260, 5);
  const int threads = kernels::cpu::Threads();
  kernels::cpu::SetThreads(1);
  const MatrixFactors one = LargestSingularValues(matrix, 6);
  kernels::cpu::SetThreads(3);
  const MatrixFactors three = LargestSingularValues(matrix, 6);
  kernels::cpu::SetThreads(threads);
  EXPECT_EQ(one.a.values, three.a.values);
  EXPECT_EQ(one.b.values, three.b.values);
  EXPECT_EQ(one.products, three.products);
}

}  // namespace
}  // namespace weft::engine
