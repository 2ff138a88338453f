#include "kernels/patches/patches.h"

WEFT_NO_CUDA_OP(UnfoldPatches, UnfoldPatchesArgs)
