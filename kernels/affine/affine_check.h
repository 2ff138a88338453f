#pragma once

#include "kernels/affine/affine.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckAffineForward(const Stream& stream, const AffineForwardArgs& args);
Status CheckAffineBackward(const Stream& stream, const AffineBackwardArgs& args);

}  // namespace weft::kernels
