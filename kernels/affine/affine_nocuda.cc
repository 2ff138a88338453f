#include "kernels/affine/affine.h"

WEFT_NO_CUDA_OP(AffineForward, AffineForwardArgs)
WEFT_NO_CUDA_OP(AffineBackward, AffineBackwardArgs)
