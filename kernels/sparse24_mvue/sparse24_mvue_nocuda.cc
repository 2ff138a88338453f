#include "kernels/sparse24_mvue/sparse24_mvue.h"

WEFT_NO_CUDA_OP(Mvue, MvueArgs)
