#pragma once

#include "kernels/block_sparse/block_sparse.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckBlockSparseForward(const Stream& stream, const BlockSparseForwardArgs& args);
Status CheckBlockSparseBackwardInput(const Stream& stream,
                                     const BlockSparseBackwardInputArgs& args);
Status CheckBlockSparseBackwardWeight(const Stream& stream,
                                      const BlockSparseBackwardWeightArgs& args);

}  // namespace weft::kernels
