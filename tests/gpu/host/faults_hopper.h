#pragma once

#include "common/status.h"
#include "kernels/stream.h"

namespace weft::kernels::cuda {

/// What a kernel for Hopper does wrong.
enum class HopperFault {
  kNone,
  kCopyNotAwaited,     ///< Multiplies before the barrier's phase has ended.
  kOtherParity,        ///< Waits for the phase before.
  kBytesForgotten,     ///< Expects fewer than come.
  kProductNotAwaited,  ///< Uses the sums at once.
  kProductNotFenced,   ///< Multiplies into registers without FenceProducts.
  kTileOverwritten,    ///< Stores to a tile while a product may read it.
  kStoreNotFenced,     ///< Stores to a tile and multiplies it without FenceAsyncProxy.
  kOtherStride,        ///< Another way between eights of rows in a descriptor.
  kOtherSwizzle,       ///< A swizzle of 64 bytes in a descriptor.
  kUnalignedTile,      ///< A tile that is not aligned to its swizzle.
  kNeverAwaited,       ///< Ends before the copy arrives.
  kTooManyRegisters,   ///< Raises more than others lower.
  kMetadataChanged,    ///< Changes the metadata of a sparse product that is under way.
};

/// out [64, 64] f32 = A A^T for A [64, 64] in bf16, by a copy of a tile and products of a
/// warpgroup; with a fault.
Status RunHopperFault(const Stream& stream, HopperFault fault, const void* a, float* out);

/// Makes the map of a tensor of f16 for boxes of `rows` rows.
Status TryTensorMap(const void* data, int64_t head_dim, int64_t stride, int rows);

}  // namespace weft::kernels::cuda
