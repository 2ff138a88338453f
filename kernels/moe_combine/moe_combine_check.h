#pragma once

#include "kernels/moe_combine/moe_combine.h"

namespace weft::kernels {

/// What all back ends demand of the arguments; not the places themselves.
Status CheckMoeCombine(const Stream& stream, const MoeCombineArgs& args);
Status CheckMoeCombineBackward(const Stream& stream, const MoeCombineBackwardArgs& args);

}  // namespace weft::kernels
