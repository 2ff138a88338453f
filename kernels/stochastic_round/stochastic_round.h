#pragma once

#include "common/rng.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// y = x as bf16, up or down so that the mean of y is x (Gupta et al. 2015, arXiv 1502.02551): the
/// upper 16 bits of word (first_element + i) of the Philox stream `key` are added to the bits of x
/// that y lacks. What bf16 holds exactly stays; finite stays finite, NaN a NaN. Element i depends
/// on nothing else, so ranks, threads and parts of a tensor round alike.
struct StochasticRoundArgs {
  TensorView x;  ///< f32, contiguous
  TensorView y;  ///< same shape, bf16
  PhiloxKey key;
  uint64_t first_element = 0;  ///< Global index of element 0; a multiple of 4.
};

WEFT_DEVICE_OP(StochasticRound, StochasticRoundArgs)

}  // namespace weft::kernels
