#include "kernels/elementwise/elementwise.h"

WEFT_NO_CUDA_OP(Cast, CastArgs)
WEFT_NO_CUDA_OP(Add, AddArgs)
WEFT_NO_CUDA_OP(Fill, FillArgs)
WEFT_NO_CUDA_OP(Scale, ScaleArgs)
WEFT_NO_CUDA_OP(AddScaled, AddScaledArgs)
WEFT_NO_CUDA_OP(AddSign, AddSignArgs)
WEFT_NO_CUDA_OP(ApplyMask, ApplyMaskArgs)
