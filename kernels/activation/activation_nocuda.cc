#include "kernels/activation/activation.h"

WEFT_NO_CUDA_OP(GeluForward, GeluForwardArgs)
WEFT_NO_CUDA_OP(GeluBackward, GeluBackwardArgs)
