#include "kernels/adafactor/adafactor.h"

WEFT_NO_CUDA_OP(Adafactor, AdafactorArgs)
