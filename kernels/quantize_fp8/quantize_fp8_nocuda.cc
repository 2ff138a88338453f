#include "kernels/quantize_fp8/quantize_fp8.h"

WEFT_NO_CUDA_OP(QuantizeFp8, QuantizeFp8Args)
WEFT_NO_CUDA_OP(UpdateFp8Scales, UpdateFp8ScalesArgs)
