#include "kernels/masked_norm/masked_norm.h"

WEFT_NO_CUDA_OP(MaskedNormForward, MaskedNormForwardArgs)
WEFT_NO_CUDA_OP(MaskedNormBackward, MaskedNormBackwardArgs)
