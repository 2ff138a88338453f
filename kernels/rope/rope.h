#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Rotary position embedding, in place (Su et al. 2021, arXiv 2104.09864, in the halves convention
/// of Hugging Face): each head's pair (x[j], x[j + head_dim / 2]) is turned by an angle that
/// depends on the token's position and on j. The other way round with `inverse`, which is the
/// gradient.
struct RopeArgs {
  TensorView x;          ///< [tokens, heads * head_dim] f32, bf16 or f16, rows may be strided
  TensorView positions;  ///< [tokens] i32, each in [0, table rows)
  TensorView cosines;    ///< [positions, head_dim / 2] f32
  TensorView sines;      ///< the same
  bool inverse = false;
};

/// A position out of range is kInvalid and named on the CPU; on CUDA, where that would mean to wait
/// for the device, it makes the token's row NaN. Deterministic.
WEFT_DEVICE_OP(Rope, RopeArgs)

}  // namespace weft::kernels
