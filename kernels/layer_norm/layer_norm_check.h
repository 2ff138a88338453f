#pragma once

#include "kernels/layer_norm/layer_norm.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckLayerNormForward(const Stream& stream, const LayerNormForwardArgs& args);
Status CheckLayerNormBackward(const Stream& stream, const LayerNormBackwardArgs& args);

}  // namespace weft::kernels
