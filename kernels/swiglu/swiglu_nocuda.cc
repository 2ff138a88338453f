#include "kernels/swiglu/swiglu.h"

WEFT_NO_CUDA_OP(SwiGluForward, SwiGluForwardArgs)
WEFT_NO_CUDA_OP(SwiGluBackward, SwiGluBackwardArgs)
