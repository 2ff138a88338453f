#include "kernels/testing/compare.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace weft::kernels::testing {
namespace {

constexpr double kEpsilonF32 = 0x1.0p-23;

// The distance from 1 to the next number of the type.
double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1.0p-7;
    case DType::kF16:
      return 0x1.0p-10;
    default:
      return kEpsilonF32;
  }
}

}  // namespace

Tolerance ToleranceFor(DType dtype, int64_t terms, int roundings) {
  double half_epsilon = Epsilon(dtype) / 2;
  // Rounding errors of a sum behave like a random walk; 4 covers its tail. By default the stored
  // result and one intermediate (a probability, a transposed copy) are each rounded once.
  double sum = 4 * kEpsilonF32 * std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1)));
  return {roundings * half_epsilon + sum, half_epsilon + sum};
}

std::string Mismatch(std::span<const double> got, std::span<const double> want,
                     const Tolerance& tolerance) {
  std::ostringstream text;
  if (got.size() != want.size()) {
    text << got.size() << " elements instead of " << want.size();
    return text.str();
  }
  double norm = 0, error_norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) {
      bool same = (std::isnan(got[i]) && std::isnan(want[i])) || got[i] == want[i];
      if (same) continue;
      text << "element " << i << " is " << got[i] << " instead of " << want[i];
      return text.str();
    }
    norm += want[i] * want[i];
    error_norm += (got[i] - want[i]) * (got[i] - want[i]);
  }
  norm = std::sqrt(norm);
  error_norm = std::sqrt(error_norm);
  double rms = want.empty() ? 0 : norm / std::sqrt(static_cast<double>(want.size()));
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(want[i])) continue;
    double scale = std::abs(want[i]) + rms;
    double error = std::abs(got[i] - want[i]);
    double ratio = error == 0 ? 0 : error / scale;
    if (ratio > worst) {
      worst = ratio;
      where = i;
    }
  }
  if (worst <= tolerance.element && error_norm <= tolerance.relative * norm) return "";
  text.precision(9);
  text << "element " << where << " is " << got[where] << " instead of " << want[where] << ": error "
       << worst << " of its scale (allowed " << tolerance.element
       << "), relative norm of all errors " << (norm == 0 ? error_norm : error_norm / norm)
       << " (allowed " << tolerance.relative << ")";
  return text.str();
}

std::string GradientMismatch(const std::function<double(const std::vector<double>&)>& f,
                             const std::vector<double>& x, std::span<const double> gradient) {
  constexpr double kStep = 1e-5;
  std::vector<double> moved = x, differences(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + kStep;
    double above = f(moved);
    moved[i] = x[i] - kStep;
    double below = f(moved);
    moved[i] = x[i];
    differences[i] = (above - below) / (2 * kStep);
  }
  return Mismatch(gradient, differences, {1e-6, 1e-6});
}

}  // namespace weft::kernels::testing
