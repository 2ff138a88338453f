#include "kernels/logit_penalty/logit_penalty.h"

WEFT_NO_CUDA_OP(LogitPenalty, LogitPenaltyArgs)
