#include "kernels/quantize_int8/quantize_int8.h"

WEFT_NO_CUDA_OP(QuantizeInt8, QuantizeInt8Args)
WEFT_NO_CUDA_OP(DequantizeInt8, DequantizeInt8Args)
