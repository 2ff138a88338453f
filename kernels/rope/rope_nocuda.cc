#include "kernels/rope/rope.h"

WEFT_NO_CUDA_OP(Rope, RopeArgs)
