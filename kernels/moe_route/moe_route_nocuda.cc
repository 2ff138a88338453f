#include "kernels/moe_route/moe_route.h"

WEFT_NO_CUDA_OP(MoeRoute, MoeRouteArgs)
WEFT_NO_CUDA_OP(MoeRouteBackward, MoeRouteBackwardArgs)
WEFT_NO_CUDA_OP(MoeDispatch, MoeDispatchArgs)
