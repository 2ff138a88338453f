#include "kernels/linear_fp8/linear_fp8.h"

WEFT_NO_CUDA_OP(MatmulFp8, MatmulFp8Args)
