#pragma once

#include "kernels/rope/rope.h"

namespace weft::kernels {

/// What all back ends demand of the arguments; not the positions themselves.
Status CheckRope(const Stream& stream, const RopeArgs& args);

}  // namespace weft::kernels
