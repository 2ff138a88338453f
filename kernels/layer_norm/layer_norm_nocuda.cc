#include "kernels/layer_norm/layer_norm.h"

WEFT_NO_CUDA_OP(LayerNormForward, LayerNormForwardArgs)
WEFT_NO_CUDA_OP(LayerNormBackward, LayerNormBackwardArgs)
