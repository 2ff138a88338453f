#pragma once

#include "common/rng.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// y = x * mask / (1 - probability). Element i of the mask is 0 when word (first_element + i) of
/// the Philox stream `key`, as UniformFloat, is below `probability`; so the backward pass (the same
/// call on the gradient) needs no stored mask, and any split over ranks or threads draws the same.
/// x may be some columns of a wider matrix: then it is element (i / columns * row_stride + i %
/// columns) that element i is counted as.
struct DropoutArgs {
  TensorView x;  ///< f32, bf16 or f16, contiguous
  TensorView y;  ///< same shape and type; may be x
  float probability = 0.0f;
  PhiloxKey key;
  const uint32_t* step = nullptr;  ///< Where key.step lies (kernels/step_value.h), or none.
  uint64_t first_element = 0;      ///< Global index of element 0; a multiple of 4.
  int64_t columns = 0;             ///< Of these columns; 0: x is whole. Multiples of 4,
  int64_t row_stride = 0;          ///< as the columns of the wider matrix.
};

WEFT_DEVICE_OP(Dropout, DropoutArgs)

}  // namespace weft::kernels
