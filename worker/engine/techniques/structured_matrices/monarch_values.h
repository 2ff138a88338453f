#pragma once

#include <span>
#include <vector>

#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"

namespace weft::engine {

/// The matrix W [out, in] that these two factors make, in the layout of StructuredTensors.
std::vector<float> MonarchMatrix(const MonarchSizes& size, std::span<const float> first,
                                 std::span<const float> second);

/// The two factors whose matrix is nearest to `weight` in the Frobenius norm. The blocks of W that
/// they make are independent, and each is the truncated singular value decomposition of that block
/// of `weight`; the singular values go half to each factor.
std::vector<std::vector<float>> NearestMonarch(const MonarchSizes& size,
                                               std::span<const float> weight);

}  // namespace weft::engine
