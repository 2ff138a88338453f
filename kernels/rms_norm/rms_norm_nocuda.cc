#include "kernels/rms_norm/rms_norm.h"

WEFT_NO_CUDA_OP(RmsNormForward, RmsNormForwardArgs)
WEFT_NO_CUDA_OP(RmsNormBackward, RmsNormBackwardArgs)
