#include "worker/engine/techniques/singular_vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

constexpr double kRounding = 1e-16;
constexpr int64_t kRowGrain = 64;  ///< Rows of a matrix that are worth a thread.

/// T = H A Hᵀ, which has elements on and next to the diagonal alone, of a symmetric A [n, n]. H is
/// the product of the reflections I - scale v vᵀ; the last one is applied first to a vector of T.
struct Tridiagonal {
  std::vector<double> diagonal;
  std::vector<double> next;  ///< Element i is in row i, column i + 1 of T; the last one is 0.
  std::vector<double> v;     ///< [n, n]: that of reflection k is in row k, from column k + 1 on.
  std::vector<double> scale;
};

Tridiagonal Reduce(std::vector<double> a, int64_t n) {
  const auto size = static_cast<size_t>(n);
  Tridiagonal t{
      std::vector<double>(size), std::vector<double>(size), {}, std::vector<double>(size)};
  const auto row = [&](int64_t i) { return a.data() + i * n; };
  std::vector<double> w(size);
  for (int64_t k = 0; k + 1 < n; ++k) {
    t.diagonal[static_cast<size_t>(k)] = row(k)[k];
    // Row k is what is left of column k; it becomes v.
    double* const v = row(k);
    double norm = 0;
    for (int64_t i = k + 1; i < n; ++i) norm += v[i] * v[i];
    norm = std::sqrt(norm);
    const double first = v[k + 1], next = first > 0 ? -norm : norm;
    t.next[static_cast<size_t>(k)] = next;
    if (norm == 0) continue;
    v[k + 1] = first - next;
    const double scale = 1 / (norm * (norm + std::fabs(first)));
    t.scale[static_cast<size_t>(k)] = scale;
    kernels::cpu::ParallelFor(n - k - 1, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = k + 1 + begin; i < k + 1 + end; ++i) {
        double sum = 0;
        for (int64_t j = k + 1; j < n; ++j) sum += row(i)[j] * v[j];
        w[static_cast<size_t>(i)] = scale * sum;
      }
    });
    double along = 0;
    for (int64_t i = k + 1; i < n; ++i) along += w[static_cast<size_t>(i)] * v[i];
    for (int64_t i = k + 1; i < n; ++i) w[static_cast<size_t>(i)] -= scale / 2 * along * v[i];
    kernels::cpu::ParallelFor(n - k - 1, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = k + 1 + begin; i < k + 1 + end; ++i) {
        const double of_v = v[i], of_w = w[static_cast<size_t>(i)];
        double* const to = row(i);
        for (int64_t j = k + 1; j < n; ++j) to[j] -= of_v * w[static_cast<size_t>(j)] + of_w * v[j];
      }
    });
  }
  if (n > 0) t.diagonal[size - 1] = row(n - 1)[n - 1];
  t.v = std::move(a);
  return t;
}

/// Makes T diagonal by implicit QL steps, and returns its eigenvectors by rows; `diagonal` becomes
/// the eigenvalues.
std::vector<double> Diagonalise(Tridiagonal& t) {
  const auto n = static_cast<int64_t>(t.diagonal.size());
  std::vector<double> vectors(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i) vectors[static_cast<size_t>(i * n + i)] = 1;
  double* const d = t.diagonal.data();
  double* const e = t.next.data();
  // The end of the part of T from `first` on that is not diagonal yet.
  const auto end_of = [&](int64_t first) {
    int64_t end = first;
    while (end + 1 < n &&
           std::fabs(e[end]) > kRounding * (std::fabs(d[end]) + std::fabs(d[end + 1])))
      ++end;
    return end;
  };
  constexpr int kMostSteps = 60;
  for (int64_t first = 0; first < n; ++first) {
    for (int step = 0; step < kMostSteps; ++step) {
      const int64_t end = end_of(first);
      if (end == first) break;
      const double half = (d[first + 1] - d[first]) / (2 * e[first]);
      double g = d[end] - d[first] + e[first] / (half + std::copysign(std::hypot(half, 1.0), half));
      double s = 1, c = 1, p = 0;
      int64_t i = end - 1;
      for (; i >= first; --i) {
        const double f = s * e[i], b = c * e[i];
        const double r = std::hypot(f, g);
        e[i + 1] = r;
        if (r == 0) break;
        s = f / r;
        c = g / r;
        const double shifted = d[i + 1] - p;
        const double turned = (d[i] - shifted) * s + 2 * c * b;
        p = s * turned;
        d[i + 1] = shifted + p;
        g = c * turned - b;
        double* const low = &vectors[static_cast<size_t>(i * n)];
        double* const high = low + n;
        for (int64_t k = 0; k < n; ++k) {
          const double before = high[k];
          high[k] = s * low[k] + c * before;
          low[k] = c * low[k] - s * before;
        }
      }
      if (i >= first) {
        d[i + 1] -= p;
      } else {
        d[first] -= p;
        e[first] = g;
      }
      e[end] = 0;
    }
  }
  return vectors;
}

/// An eigenvector of T as that of A.
void Reflect(const Tridiagonal& t, double* vector) {
  const auto n = static_cast<int64_t>(t.diagonal.size());
  for (int64_t k = n - 2; k >= 0; --k) {
    const double* const v = &t.v[static_cast<size_t>(k * n)];
    double sum = 0;
    for (int64_t i = k + 1; i < n; ++i) sum += v[i] * vector[i];
    sum *= t.scale[static_cast<size_t>(k)];
    for (int64_t i = k + 1; i < n; ++i) vector[i] -= sum * v[i];
  }
}

}  // namespace

SingularVectors NearestOfRank(const std::vector<double>& matrix, int64_t rows, int64_t columns,
                              int64_t rank) {
  const bool wide = rows < columns;
  const int64_t n = std::min(rows, columns), length = std::max(rows, columns);
  // By the short side.
  std::vector<double> lines(matrix.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < length; ++k) {
      lines[static_cast<size_t>(i * length + k)] =
          matrix[static_cast<size_t>(wide ? i * columns + k : k * columns + i)];
    }
  }
  std::vector<double> squares(static_cast<size_t>(n * n));
  kernels::cpu::ParallelForDynamic(n, [&](int64_t i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double* const a = &lines[static_cast<size_t>(i * length)];
      const double* const b = &lines[static_cast<size_t>(j * length)];
      double sum = 0;
      for (int64_t k = 0; k < length; ++k) sum += a[k] * b[k];
      squares[static_cast<size_t>(i * n + j)] = squares[static_cast<size_t>(j * n + i)] = sum;
    }
  });
  Tridiagonal t = Reduce(std::move(squares), n);
  std::vector<double> vectors = Diagonalise(t);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
    return t.diagonal[static_cast<size_t>(i)] > t.diagonal[static_cast<size_t>(j)];
  });
  SingularVectors result;
  std::vector<double>& of_short = wide ? result.left : result.right;
  std::vector<double>& of_long = wide ? result.right : result.left;
  for (int64_t r = 0; r < rank; ++r) {
    const int64_t vector = order[static_cast<size_t>(r)];
    double* const u = &vectors[static_cast<size_t>(vector * n)];
    Reflect(t, u);
    const double value = std::sqrt(std::max(t.diagonal[static_cast<size_t>(vector)], 0.0));
    const double root = std::sqrt(value);
    for (int64_t i = 0; i < n; ++i) of_short.push_back(root * u[i]);
    std::vector<double> sums(static_cast<size_t>(length), 0.0);
    for (int64_t i = 0; value > 0 && i < n; ++i) {
      const double factor = u[i] / root;
      const double* const line = &lines[static_cast<size_t>(i * length)];
      for (int64_t k = 0; k < length; ++k) sums[static_cast<size_t>(k)] += factor * line[k];
    }
    of_long.insert(of_long.end(), sums.begin(), sums.end());
  }
  return result;
}

}  // namespace weft::engine
