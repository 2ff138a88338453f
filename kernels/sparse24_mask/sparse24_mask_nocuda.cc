#include "kernels/sparse24_mask/sparse24_mask.h"

WEFT_NO_CUDA_OP(TransposableMask, TransposableMaskArgs)
WEFT_NO_CUDA_OP(RowMask, RowMaskArgs)
WEFT_NO_CUDA_OP(SoftThreshold, SoftThresholdArgs)
