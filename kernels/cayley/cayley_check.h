#pragma once

#include "kernels/cayley/cayley.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckCayleyForward(const Stream& stream, const CayleyForwardArgs& args);
Status CheckCayleyBackward(const Stream& stream, const CayleyBackwardArgs& args);

}  // namespace weft::kernels
