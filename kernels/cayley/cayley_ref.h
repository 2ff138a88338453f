#pragma once

#include <cstdint>
#include <vector>

namespace weft::kernels {

using RefSquare = std::vector<double>;  ///< Row after row.

inline RefSquare RefTimes(const RefSquare& a, const RefSquare& b, int64_t size) {
  RefSquare c(a.size(), 0.0);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t k = 0; k < size; ++k) {
      for (int64_t j = 0; j < size; ++j) c[i * size + j] += a[i * size + k] * b[k * size + j];
    }
  }
  return c;
}

inline RefSquare RefSkew(const double* above, int64_t size) {
  RefSquare q(static_cast<size_t>(size * size), 0.0);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = i + 1; j < size; ++j, ++above) {
      q[i * size + j] = *above;
      q[j * size + i] = -*above;
    }
  }
  return q;
}

/// Sums the powers of the skew matrix of a row of q, with these coefficients.
inline RefSquare CayleyRef(const double* above, int64_t size) {
  constexpr double kCoefficients[] = {2, 2, 2, 1};
  const RefSquare q = RefSkew(above, size);
  RefSquare power = q, r(q.size(), 0.0);
  for (const double coefficient : kCoefficients) {
    for (size_t e = 0; e < r.size(); ++e) r[e] += coefficient * power[e];
    power = RefTimes(power, q, size);
  }
  return r;
}

/// The gradient of a row of q: of a power, that of each of its factors in turn.
inline std::vector<double> CayleyGradientRef(const double* above, const double* dr, int64_t size) {
  constexpr double kCoefficients[] = {2, 2, 2, 1};
  RefSquare minus = RefSkew(above, size);  // the transpose
  for (double& value : minus) value = -value;
  RefSquare dskew(minus.size(), 0.0);
  for (int64_t power = 1; power <= 4; ++power) {
    for (int64_t left = 0; left < power; ++left) {
      RefSquare term(dr, dr + size * size);
      for (int64_t k = 0; k < left; ++k) term = RefTimes(minus, term, size);
      for (int64_t k = left + 1; k < power; ++k) term = RefTimes(term, minus, size);
      for (size_t e = 0; e < term.size(); ++e) dskew[e] += kCoefficients[power - 1] * term[e];
    }
  }
  std::vector<double> gradient;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = i + 1; j < size; ++j) {
      gradient.push_back(dskew[i * size + j] - dskew[j * size + i]);
    }
  }
  return gradient;
}

}  // namespace weft::kernels
