#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// Numbers above the diagonal of a square matrix.
inline int64_t NumbersAboveDiagonal(int64_t size) {
  return size * (size - 1) / 2;
}

/// Square blocks that are nearly rotations: the Cayley transform (I + Q)(I - Q)⁻¹ of skew-symmetric
/// matrices Q, as the five terms of its Neumann series that Hugging Face's peft library takes,
///   R = I + 2 Q + 2 Q² + 2 Q³ + Q⁴
/// (Qiu et al. 2025, arXiv 2506.19847). A row of q has the numbers above the diagonal of one Q, row
/// after row. What is made is R - I, which is small compared with I, and 0 where Q is.
struct CayleyForwardArgs {
  TensorView q;  ///< [blocks, size (size - 1) / 2] f32 or bf16
  TensorView r;  ///< [blocks * size, size] f32: R - I of the blocks, one under the other
};

/// dq = the gradient of q from that of r, or dq += it.
struct CayleyBackwardArgs {
  TensorView q;   ///< As in the forward pass.
  TensorView dr;  ///< [blocks * size, size] f32
  TensorView dq;  ///< [blocks, size (size - 1) / 2] f32
  bool accumulate = false;
};

/// Both: tensors are contiguous, and do not overlap; kInvalid where the sizes do not fit.
/// Deterministic for any number of threads.
WEFT_DEVICE_OP(CayleyForward, CayleyForwardArgs)
WEFT_DEVICE_OP(CayleyBackward, CayleyBackwardArgs)

}  // namespace weft::kernels
