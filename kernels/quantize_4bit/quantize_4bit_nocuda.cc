#include "kernels/quantize_4bit/quantize_4bit.h"

WEFT_NO_CUDA_OP(Dequantize4Bit, Dequantize4BitArgs)
