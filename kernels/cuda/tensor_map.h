#pragma once

// Tensor maps: what ptx::CopyTile copies boxes of.

#include <cstdint>
#include <string_view>

#include <cuda.h>
#include <cuda_runtime.h>

#include "common/dtype.h"
#include "common/status.h"

namespace weft::kernels::cuda {

/// Tokens of heads in a matrix of 16-bit elements, read in boxes.
struct HeadTensor {
  const void* data = nullptr;  ///< Aligned to 16 bytes.
  int64_t tokens = 0;
  int64_t heads = 1;
  int64_t head_dim = 0;  ///< A multiple of 8.
  int64_t stride = 0;    ///< Elements between tokens, a multiple of 8.
};

/// Columns of a box: 128 bytes, within which it arrives swizzled as MatrixDescriptor has it
/// (kernels/cuda/panel_tile.h).
inline constexpr int kBoxColumns = 64;

/// The map whose boxes are `columns` columns, kBoxColumns or half as many, of one head (x: column,
/// y: head) and `rows` tokens (z), at most 256. Made on the host, and handed to a kernel by value
/// as a __grid_constant__. kInternal with the driver's error, kUnavailable where it is too old to
/// have such maps.
Result<CUtensorMap> HeadTensorMap(std::string_view op, DType dtype, const HeadTensor& tensor,
                                  int rows, int columns = kBoxColumns);

}  // namespace weft::kernels::cuda
