#pragma once

#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_draw.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckDropout(const Stream& stream, const DropoutArgs& args);

/// What they all draw.
DropoutDraw DrawOf(const DropoutArgs& args);

}  // namespace weft::kernels
