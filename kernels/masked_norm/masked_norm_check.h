#pragma once

#include "kernels/masked_norm/masked_norm.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckMaskedNormForward(const Stream& stream, const MaskedNormForwardArgs& args);
Status CheckMaskedNormBackward(const Stream& stream, const MaskedNormBackwardArgs& args);

}  // namespace weft::kernels
