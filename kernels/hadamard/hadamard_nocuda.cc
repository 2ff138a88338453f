#include "kernels/hadamard/hadamard.h"

WEFT_NO_CUDA_OP(Hadamard, HadamardArgs)
