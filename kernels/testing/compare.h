#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace weft::kernels::testing {

/// How far a result may be from the float64 truth.
struct Tolerance {
  double element;   ///< |got - want| <= element * (|want| + rms(want)), for each element
  double relative;  ///< ||got - want|| <= relative * ||want||
};

/// The one place where tolerances come from: the epsilon of `dtype` (the type in which results are
/// stored or intermediates pass) for `roundings` roundings on the way, the last of them that of the
/// result, and f32 sums of `terms` terms between.
Tolerance ToleranceFor(DType dtype, int64_t terms, int roundings = 2);

/// Empty when `got` agrees with `want`; otherwise the worst element and both errors, as text.
/// Elements that are not finite must be the same in both.
std::string Mismatch(std::span<const double> got, std::span<const double> want,
                     const Tolerance& tolerance);

/// Compares `gradient` of the scalar function `f` at `x` with central differences; empty or text.
/// For float64 references of backward passes.
std::string GradientMismatch(const std::function<double(const std::vector<double>&)>& f,
                             const std::vector<double>& x, std::span<const double> gradient);

}  // namespace weft::kernels::testing
