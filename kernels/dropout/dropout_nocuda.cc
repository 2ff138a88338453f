#include "kernels/dropout/dropout.h"

WEFT_NO_CUDA_OP(Dropout, DropoutArgs)
