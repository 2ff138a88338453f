#include "kernels/gather_rows/gather_rows.h"

WEFT_NO_CUDA_OP(GatherRows, GatherRowsArgs)
WEFT_NO_CUDA_OP(ScatterRows, ScatterRowsArgs)
