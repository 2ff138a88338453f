#pragma once

#include "kernels/rms_norm/rms_norm.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckRmsNormForward(const Stream& stream, const RmsNormForwardArgs& args);
Status CheckRmsNormBackward(const Stream& stream, const RmsNormBackwardArgs& args);

}  // namespace weft::kernels
