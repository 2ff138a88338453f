#include "kernels/sparse24_decay/sparse24_decay.h"

WEFT_NO_CUDA_OP(MaskedDecay, MaskedDecayArgs)
WEFT_NO_CUDA_OP(MaskedWeightDecay, MaskedWeightDecayArgs)
