#include "kernels/moe_combine/moe_combine.h"

WEFT_NO_CUDA_OP(MoeCombine, MoeCombineArgs)
WEFT_NO_CUDA_OP(MoeCombineBackward, MoeCombineBackwardArgs)
