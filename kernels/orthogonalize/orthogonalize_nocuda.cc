#include "kernels/orthogonalize/orthogonalize.h"

WEFT_NO_CUDA_OP(Orthogonalize, OrthogonalizeArgs)
