#include "kernels/activation/activation.h"

WEFT_NO_CUDA_OP(GeluForward, GeluForwardArgs)
WEFT_NO_CUDA_OP(GeluBackward, GeluBackwardArgs)
WEFT_NO_CUDA_OP(TanhForward, TanhForwardArgs)
WEFT_NO_CUDA_OP(TanhBackward, TanhBackwardArgs)
WEFT_NO_CUDA_OP(SquaredReluForward, SquaredReluForwardArgs)
WEFT_NO_CUDA_OP(SquaredReluBackward, SquaredReluBackwardArgs)
WEFT_NO_CUDA_OP(UnitForward, UnitForwardArgs)
WEFT_NO_CUDA_OP(UnitBackward, UnitBackwardArgs)
