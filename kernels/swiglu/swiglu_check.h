#pragma once

#include "kernels/swiglu/swiglu.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckSwiGluForward(const Stream& stream, const SwiGluForwardArgs& args);
Status CheckSwiGluBackward(const Stream& stream, const SwiGluBackwardArgs& args);

}  // namespace weft::kernels
