#include "kernels/swap_blocks/swap_blocks.h"

WEFT_NO_CUDA_OP(SwapBlocks, SwapBlocksArgs)
