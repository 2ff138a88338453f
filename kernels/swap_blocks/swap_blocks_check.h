#pragma once

#include "kernels/swap_blocks/swap_blocks.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckSwapBlocks(const Stream& stream, const SwapBlocksArgs& args);

}  // namespace weft::kernels
