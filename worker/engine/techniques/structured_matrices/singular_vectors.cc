#include "worker/engine/techniques/structured_matrices/singular_vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace weft::engine {
namespace {

/// A symmetric matrix [n, n] on its way to be diagonal, and the product of the rotations: its rows
/// are the eigenvectors in the end.
struct Symmetric {
  int64_t n;
  std::vector<double> a;
  std::vector<double> vectors;

  double& At(int64_t i, int64_t j) { return a[static_cast<size_t>(i * n + j)]; }
};

/// Rotates rows and columns p < q so that element (p, q) becomes zero (Jacobi).
void Rotate(Symmetric& m, int64_t p, int64_t q) {
  const double off = m.At(p, q);
  const double theta = (m.At(q, q) - m.At(p, p)) / (2 * off);
  const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  const auto turn = [&](double& x, double& y) {
    const double before = x;
    x = c * before - s * y;
    y = s * before + c * y;
  };
  double* const rows[2] = {&m.At(p, 0), &m.At(q, 0)};
  for (int64_t i = 0; i < m.n; ++i) turn(rows[0][i], rows[1][i]);
  for (int64_t i = 0; i < m.n; ++i) turn(m.At(i, p), m.At(i, q));
  double* const vectors[2] = {&m.vectors[static_cast<size_t>(p * m.n)],
                              &m.vectors[static_cast<size_t>(q * m.n)]};
  for (int64_t i = 0; i < m.n; ++i) turn(vectors[0][i], vectors[1][i]);
}

/// Diagonalises `m` in sweeps over all pairs, until what is beside the diagonal is rounding.
void Diagonalise(Symmetric& m) {
  constexpr int kMostSweeps = 60;
  constexpr double kRounding = 1e-15;
  double norm = 0;
  for (const double value : m.a) norm += value * value;
  const double small = kRounding * std::sqrt(norm) / static_cast<double>(m.n);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool rotated = false;
    for (int64_t p = 0; p < m.n; ++p) {
      for (int64_t q = p + 1; q < m.n; ++q) {
        if (std::fabs(m.At(p, q)) <= small) continue;
        Rotate(m, p, q);
        rotated = true;
      }
    }
    if (!rotated) return;
  }
}

}  // namespace

SingularVectors NearestOfRank(const std::vector<double>& matrix, int64_t rows, int64_t columns,
                              int64_t rank) {
  const bool wide = rows < columns;
  const int64_t n = std::min(rows, columns), length = std::max(rows, columns);
  // Number k of the long side in row i of the short one.
  const auto at = [&](int64_t i, int64_t k) {
    return matrix[static_cast<size_t>(wide ? i * columns + k : k * columns + i)];
  };
  Symmetric squares{n, std::vector<double>(static_cast<size_t>(n * n)),
                    std::vector<double>(static_cast<size_t>(n * n))};
  for (int64_t i = 0; i < n; ++i) {
    squares.vectors[static_cast<size_t>(i * n + i)] = 1;
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < length; ++k) sum += at(i, k) * at(j, k);
      squares.At(i, j) = squares.At(j, i) = sum;
    }
  }
  Diagonalise(squares);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return squares.At(i, i) > squares.At(j, j); });
  SingularVectors result;
  std::vector<double>& of_short = wide ? result.left : result.right;
  std::vector<double>& of_long = wide ? result.right : result.left;
  for (int64_t r = 0; r < rank; ++r) {
    const int64_t vector = order[static_cast<size_t>(r)];
    const double* const u = &squares.vectors[static_cast<size_t>(vector * n)];
    const double value = std::sqrt(std::max(squares.At(vector, vector), 0.0));
    const double root = std::sqrt(value);
    for (int64_t i = 0; i < n; ++i) of_short.push_back(root * u[i]);
    for (int64_t k = 0; k < length; ++k) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += u[i] * at(i, k);
      of_long.push_back(value > 0 ? sum / root : 0);
    }
  }
  return result;
}

}  // namespace weft::engine
