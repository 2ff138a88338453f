#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Cuts images into square patches, row after row of patches: a patch is a row of `patches`,
/// ordered channel, row, column, as the weights of a convolution are.
struct UnfoldPatchesArgs {
  TensorView pixels;  ///< [images, channels * side * side] f32
  int64_t channels = 1;
  int64_t patch_size = 1;  ///< Divides the side.
  TensorView patches;      ///< [images * (side / patch_size)^2, channels * patch_size^2]
                           ///< f32, bf16 or f16
};

WEFT_DEVICE_OP(UnfoldPatches, UnfoldPatchesArgs)

}  // namespace weft::kernels
