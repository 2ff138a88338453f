#include "kernels/optimizer/optimizer.h"

WEFT_NO_CUDA_OP(Sgd, SgdArgs)
WEFT_NO_CUDA_OP(Lars, LarsArgs)
WEFT_NO_CUDA_OP(Adam, AdamArgs)
WEFT_NO_CUDA_OP(Lamb, LambArgs)
WEFT_NO_CUDA_OP(Lion, LionArgs)
WEFT_NO_CUDA_OP(ScheduleFreeAdamW, ScheduleFreeArgs)
WEFT_NO_CUDA_OP(Momentum, MomentumArgs)
