#include "kernels/step_totals/step_totals.h"

WEFT_NO_CUDA_OP(AddLosses, AddLossesArgs)
WEFT_NO_CUDA_OP(DecideUpdate, DecideUpdateArgs)
