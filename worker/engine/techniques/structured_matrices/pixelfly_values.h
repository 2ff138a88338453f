#pragma once

#include <span>
#include <vector>

#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"

namespace weft::engine {

/// The matrix W [out, in] that these tensors make, in the order and layout of StructuredTensors.
std::vector<float> PixelflyMatrix(const PixelflySizes& size,
                                  const std::vector<std::vector<float>>& tensors);

/// Tensors whose matrix is near to `weight`: the truncated singular value decomposition of what is
/// outside of the blocks, and then the blocks of the rest. No error is left in the blocks; the
/// optimum over both at once would have other vectors.
std::vector<std::vector<float>> NearPixelfly(const PixelflySizes& size,
                                             std::span<const float> weight);

}  // namespace weft::engine
