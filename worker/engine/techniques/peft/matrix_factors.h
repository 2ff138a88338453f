#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::engine {

/// Row-major, in double precision.
struct DoubleMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  DoubleMatrix(int64_t r, int64_t c)
      : rows(r), columns(c), values(static_cast<size_t>(r * c), 0.0) {}
  double* row(int64_t index) { return values.data() + index * columns; }
  const double* row(int64_t index) const { return values.data() + index * columns; }
};

/// The sum of a[i] b[i].
double Dot(const double* a, const double* b, int64_t count);

/// a b. Not by the kernels of f32: ranks on other processors must find the same vectors, also of
/// singular values that are nearly the same. The order of sums depends on the sizes alone.
DoubleMatrix Times(const DoubleMatrix& a, const DoubleMatrix& b);

/// The two factors of LoRA, B [out, rank] and A [rank, in].
struct MatrixFactors {
  DoubleMatrix b;
  DoubleMatrix a;
  int64_t products =
      0;  ///< How often some vectors were multiplied by the weight and its transpose.
};

/// The `rank` largest singular values of `weight`, half of each in either factor. By iterating on a
/// subspace of 2 rank + 8 vectors with Chebyshev polynomials of weight^T weight (Zhou et al. 2006,
/// doi 10.1016/j.jcp.2006.03.017), until none of their squares changes by more than 1e-10 of it, or
/// for 100 products. Where the weight has few more, all of them are found after one product.
MatrixFactors LargestSingularValues(const DoubleMatrix& weight, int64_t rank);

/// The first `rank` columns of Q and rows of R of weight = Q R, with the signs of LAPACK: the
/// diagonal of R is negative where that of the column before its reflection was not.
MatrixFactors FirstOfQr(const DoubleMatrix& weight, int64_t rank);

}  // namespace weft::engine
