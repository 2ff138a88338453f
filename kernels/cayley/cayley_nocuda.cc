#include "kernels/cayley/cayley.h"

WEFT_NO_CUDA_OP(CayleyForward, CayleyForwardArgs)
WEFT_NO_CUDA_OP(CayleyBackward, CayleyBackwardArgs)
