#include "kernels/group_quantize/group_quantize.h"

WEFT_NO_CUDA_OP(GroupQuantize, GroupQuantizeArgs)
WEFT_NO_CUDA_OP(GroupDequantize, GroupDequantizeArgs)
