#pragma once

#include "kernels/adafactor/adafactor.h"

namespace weft::kernels {

inline constexpr double kSmallestScale = 1e-3;    ///< Of parameters, the paper's second epsilon.
inline constexpr double kSmallestSquare = 1e-30;  ///< Of gradients, its first.

/// What all back ends demand of the arguments.
Status CheckAdafactor(const Stream& stream, const AdafactorArgs& args);

}  // namespace weft::kernels
