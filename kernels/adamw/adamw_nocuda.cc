#include "kernels/adamw/adamw.h"

WEFT_NO_CUDA_OP(AdamW, AdamWArgs)
