#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace weft::engine {

/// For tests: does to f32 values in host memory what a processor does that computes wrong. The
/// lowest bit of the first of them flips.
inline void FlipBit(const TensorView& values) {
  static_cast<uint32_t*>(values.data)[0] ^= 1;
}

}  // namespace weft::engine
