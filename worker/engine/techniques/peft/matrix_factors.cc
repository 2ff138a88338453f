#include "worker/engine/techniques/peft/matrix_factors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/rng.h"
#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

/// Adds a tile of a b to `product`: these rows and columns. Rows of b are read four at a time, such
/// that they stay in the cache for all rows of a.
void AddTile(const DoubleMatrix& a, const DoubleMatrix& b, int64_t first_row, int64_t last_row,
             int64_t first, int64_t last, DoubleMatrix& product) {
  int64_t k = 0;
  for (; k + 4 <= b.rows; k += 4) {
    const double* const b0 = b.row(k);
    const double* const b1 = b.row(k + 1);
    const double* const b2 = b.row(k + 2);
    const double* const b3 = b.row(k + 3);
    for (int64_t i = first_row; i < last_row; ++i) {
      const double* const from = a.row(i) + k;
      const double a0 = from[0], a1 = from[1], a2 = from[2], a3 = from[3];
      double* const to = product.row(i);
      for (int64_t c = first; c < last; ++c) {
        to[c] += (a0 * b0[c] + a1 * b1[c]) + (a2 * b2[c] + a3 * b3[c]);
      }
    }
  }
  for (; k < b.rows; ++k) {
    for (int64_t i = first_row; i < last_row; ++i) {
      const double factor = a.row(i)[k];
      for (int64_t c = first; c < last; ++c) product.row(i)[c] += factor * b.row(k)[c];
    }
  }
}

/// The transpose.
DoubleMatrix Turned(const DoubleMatrix& matrix) {
  DoubleMatrix turned(matrix.columns, matrix.rows);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t k = 0; k < matrix.columns; ++k) turned.row(k)[i] = matrix.row(i)[k];
  }
  return turned;
}

/// Makes the rows orthonormal, one after the other, twice for accuracy. Returns the lower triangle
/// that the rows were, times the new ones.
DoubleMatrix Orthonormalize(DoubleMatrix& rows) {
  DoubleMatrix triangle(rows.rows, rows.rows);
  constexpr int64_t kRowGrain = 16, kColumnGrain = 1024;  // what is worth a thread
  std::vector<double> shares(static_cast<size_t>(rows.rows));
  for (int64_t i = 0; i < rows.rows; ++i) {
    double* const own = rows.row(i);
    for (int pass = 0; pass < 2; ++pass) {
      kernels::cpu::ParallelFor(i, kRowGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          shares[static_cast<size_t>(k)] = Dot(own, rows.row(k), rows.columns);
        }
      });
      for (int64_t k = 0; k < i; ++k) triangle.row(i)[k] += shares[static_cast<size_t>(k)];
      kernels::cpu::ParallelFor(rows.columns, kColumnGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < i; ++k) {
          const double share = shares[static_cast<size_t>(k)];
          const double* const other = rows.row(k);
          for (int64_t c = begin; c < end; ++c) own[c] -= share * other[c];
        }
      });
    }
    const double length = triangle.row(i)[i] = std::sqrt(Dot(own, own, rows.columns));
    for (int64_t c = 0; c < rows.columns; ++c) own[c] /= std::max(length, 1e-300);
  }
  return triangle;
}

/// Rotates rows of `matrix`, and of `with` alike, until those of `matrix` are orthogonal (one-sided
/// Jacobi): then their lengths are its singular values.
void MakeRowsOrthogonal(DoubleMatrix& matrix, DoubleMatrix& with) {
  constexpr int kMostSweeps = 60;
  constexpr double kEnough = 1e-15;
  const auto rotate = [](double* a, double* b, int64_t count, double cosine, double sine) {
    for (int64_t i = 0; i < count; ++i) {
      const double before = a[i];
      a[i] = cosine * before - sine * b[i];
      b[i] = sine * before + cosine * b[i];
    }
  };
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double worst = 0;
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t k = i + 1; k < matrix.rows; ++k) {
        double* const a = matrix.row(i);
        double* const b = matrix.row(k);
        const double aa = Dot(a, a, matrix.columns), bb = Dot(b, b, matrix.columns);
        const double ab = Dot(a, b, matrix.columns);
        const double size = std::sqrt(aa * bb);
        if (size == 0 || std::fabs(ab) <= kEnough * size) continue;
        worst = std::max(worst, std::fabs(ab) / size);
        const double zeta = (bb - aa) / (2 * ab);
        const double tangent =
            (zeta < 0 ? -1.0 : 1.0) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent);
        rotate(a, b, matrix.columns, cosine, cosine * tangent);
        rotate(with.row(i), with.row(k), with.columns, cosine, cosine * tangent);
      }
    }
    if (worst < 1e-12) return;
  }
}

/// Vectors of the space of inputs, and what a weight makes of them.
struct SubspaceVectors {
  DoubleMatrix inputs;          ///< Orthonormal rows,
  DoubleMatrix results;         ///< and of each the result: orthogonal rows.
  std::vector<double> squares;  ///< Of their lengths, falling.

  double largest() const { return squares.front(); }
  double smallest() const { return squares.back(); }
};

/// Those of a subspace, given by orthonormal rows, whose results are orthogonal (Rayleigh-Ritz):
/// their lengths approach the largest singular values from below.
SubspaceVectors VectorsOf(const DoubleMatrix& space, const DoubleMatrix& turned) {
  DoubleMatrix results = Times(space, turned);
  DoubleMatrix triangle = Orthonormalize(results);
  const int64_t size = triangle.rows;
  DoubleMatrix rotation(size, size);
  for (int64_t i = 0; i < size; ++i) rotation.row(i)[i] = 1;
  MakeRowsOrthogonal(triangle, rotation);
  std::vector<double> squares;
  for (int64_t i = 0; i < size; ++i) {
    squares.push_back(Dot(triangle.row(i), triangle.row(i), size));
  }
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t k) {
    return squares[static_cast<size_t>(i)] > squares[static_cast<size_t>(k)];
  });
  DoubleMatrix of_inputs(size, size), of_results(size, size);
  std::vector<double> falling;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    std::copy_n(rotation.row(from), size, of_inputs.row(i));
    std::copy_n(triangle.row(from), size, of_results.row(i));
    falling.push_back(squares[static_cast<size_t>(from)]);
  }
  return {Times(of_inputs, space), Times(of_results, results), std::move(falling)};
}

/// The degree of the polynomial that the vectors are filtered by, 10 at most; 0 where even the
/// first one would grow too much. It multiplies the first vector by its value at the largest
/// square, and accuracy of the last ones is lost by as much.
int DegreeFor(const SubspaceVectors& found) {
  constexpr int kMost = 10;
  constexpr double kMostGrowth = 1e7;
  if (found.smallest() <= 0) return 0;
  const double at = 2 * found.largest() / found.smallest() - 1;
  int degree = 0;
  for (double before = 1, value = at; degree < kMost && value <= kMostGrowth; ++degree) {
    before = std::exchange(value, 2 * at * value - before);
  }
  return degree;
}

/// The Chebyshev polynomial of weight^T weight times the vectors. Its values are from -1 to 1 up to
/// the smallest square that was found, and grow fast above it.
DoubleMatrix Filtered(const SubspaceVectors& found, const DoubleMatrix& weight,
                      const DoubleMatrix& turned, int degree) {
  const double scale = 2 / found.smallest();
  DoubleMatrix before = found.inputs;
  DoubleMatrix now = Times(found.results, weight);
  for (size_t i = 0; i < now.values.size(); ++i) {
    now.values[i] = scale * now.values[i] - before.values[i];
  }
  for (int k = 2; k <= degree; ++k) {
    DoubleMatrix next = Times(Times(now, turned), weight);
    for (size_t i = 0; i < next.values.size(); ++i) {
      next.values[i] = 2 * (scale * next.values[i] - now.values[i]) - before.values[i];
    }
    before = std::exchange(now, std::move(next));
  }
  return now;
}

/// weight^T weight times the vectors, which are made orthonormal in between, too.
DoubleMatrix OneStep(DoubleMatrix results, const DoubleMatrix& weight) {
  Orthonormalize(results);
  return Times(results, weight);
}

/// Whether the first `rank` squares are as they were before, to 1e-10 of each, or to what rounding
/// makes of those that are next to nothing to the first one. Before that polynomial the errors of
/// the vectors were about 1e-5.
bool AreSettled(const std::vector<double>& squares, const std::vector<double>& before,
                int64_t rank) {
  constexpr double kEnough = 1e-10, kRounding = 1e-14;
  const double rounding = kRounding * std::sqrt(squares[0]);
  for (size_t i = 0; i < static_cast<size_t>(rank); ++i) {
    const double most = kEnough * squares[i] + rounding * (std::sqrt(squares[i]) + rounding);
    if (std::fabs(squares[i] - before[i]) > most) return false;
  }
  return true;
}

}  // namespace

// In four sums, whose additions need not wait for each other.
double Dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

DoubleMatrix Times(const DoubleMatrix& a, const DoubleMatrix& b) {
  constexpr int64_t kRows = 64, kColumns = 128;  // of a tile, which stays in the cache
  DoubleMatrix product(a.rows, b.columns);
  const int64_t across = (b.columns + kColumns - 1) / kColumns;
  const int64_t tiles = (a.rows + kRows - 1) / kRows * across;
  kernels::cpu::ParallelForDynamic(tiles, [&](int64_t tile) {
    const int64_t row = tile / across * kRows, column = tile % across * kColumns;
    AddTile(a, b, row, std::min(row + kRows, a.rows), column,
            std::min(column + kColumns, b.columns), product);
  });
  return product;
}

MatrixFactors LargestSingularValues(const DoubleMatrix& weight, int64_t rank) {
  constexpr int64_t kMostProducts = 100;
  const int64_t all = std::min(weight.rows, weight.columns);
  const int64_t wanted = 2 * rank + 8;
  const bool whole = all <= 2 * wanted;
  const DoubleMatrix turned = Turned(weight);
  DoubleMatrix space(whole ? all : wanted, weight.columns);  // rows, in the space of inputs
  PhiloxStream random({.seed = 0, .step = 0, .site = SiteHash("singular values")});
  for (double& value : space.values) value = random.Uniform() - 0.5;
  Orthonormalize(space);
  int64_t products = 0;
  if (whole) {
    // Its whole row space.
    space = OneStep(Times(space, turned), weight);
    Orthonormalize(space);
    products = 1;
  }
  SubspaceVectors found = VectorsOf(space, turned);
  for (bool settled = whole; !settled && products < kMostProducts;) {
    const int degree = DegreeFor(found);
    space = degree > 0 ? Filtered(found, weight, turned, degree)
                       : OneStep(std::move(found.results), weight);
    Orthonormalize(space);
    products += std::max(degree, 1);
    SubspaceVectors next = VectorsOf(space, turned);
    settled = AreSettled(next.squares, found.squares, rank);
    found = std::move(next);
  }
  MatrixFactors factors{DoubleMatrix(weight.rows, rank), DoubleMatrix(rank, weight.columns),
                        products};
  for (int64_t k = 0; k < rank; ++k) {
    const double root = std::sqrt(std::sqrt(found.squares[static_cast<size_t>(k)]));
    const double* const input = found.inputs.row(k);
    const double* const result = found.results.row(k);
    for (int64_t i = 0; i < weight.columns; ++i) factors.a.row(k)[i] = root * input[i];
    for (int64_t i = 0; i < weight.rows; ++i) {
      factors.b.row(i)[k] = root == 0 ? 0 : result[i] / root;
    }
  }
  return factors;
}

MatrixFactors FirstOfQr(const DoubleMatrix& weight, int64_t rank) {
  DoubleMatrix r = weight;
  DoubleMatrix reflections(rank, weight.rows);  // unit vectors, or zero
  for (int64_t k = 0; k < rank; ++k) {
    double squares = 0;
    for (int64_t i = k + 1; i < r.rows; ++i) squares += r.row(i)[k] * r.row(i)[k];
    const double head = r.row(k)[k];
    if (squares == 0) continue;  // as LAPACK: nothing to reflect
    const double length = std::sqrt(head * head + squares);
    const double to = head < 0 ? length : -length;
    double* const v = reflections.row(k);
    v[k] = head - to;
    for (int64_t i = k + 1; i < r.rows; ++i) v[i] = r.row(i)[k];
    const double norm = std::sqrt(Dot(v, v, r.rows));
    for (int64_t i = k; i < r.rows; ++i) v[i] /= norm;
    std::vector<double> along(static_cast<size_t>(r.columns), 0.0);
    for (int64_t i = k; i < r.rows; ++i) {
      for (int64_t c = 0; c < r.columns; ++c) along[static_cast<size_t>(c)] += v[i] * r.row(i)[c];
    }
    for (int64_t i = k; i < r.rows; ++i) {
      for (int64_t c = 0; c < r.columns; ++c) {
        r.row(i)[c] -= 2 * v[i] * along[static_cast<size_t>(c)];
      }
    }
  }
  MatrixFactors factors{DoubleMatrix(weight.rows, rank), DoubleMatrix(rank, weight.columns)};
  for (int64_t k = 0; k < rank; ++k) {
    for (int64_t c = k; c < r.columns; ++c) factors.a.row(k)[c] = r.row(k)[c];
    factors.b.row(k)[k] = 1;
  }
  for (int64_t k = rank - 1; k >= 0; --k) {
    const double* const v = reflections.row(k);
    for (int64_t c = 0; c < rank; ++c) {
      double along = 0;
      for (int64_t i = k; i < weight.rows; ++i) along += v[i] * factors.b.row(i)[c];
      for (int64_t i = k; i < weight.rows; ++i) factors.b.row(i)[c] -= 2 * along * v[i];
    }
  }
  return factors;
}

}  // namespace weft::engine
