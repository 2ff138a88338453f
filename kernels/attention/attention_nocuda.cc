#include "kernels/attention/attention.h"

WEFT_NO_CUDA_OP(AttentionForward, AttentionForwardArgs)
WEFT_NO_CUDA_OP(AttentionBackward, AttentionBackwardArgs)
