#include "kernels/norm_stat/norm_stat.h"

WEFT_NO_CUDA_OP(NormStat, NormStatArgs)
