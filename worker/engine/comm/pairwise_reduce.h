#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// result[i] = the reduction of inputs[0][i], inputs[1][i], ... in f32, rounded once to `dtype`,
/// which is that of inputs and result: one of kFloatTypes. Sums are those of a binary tree: of the
/// largest power of two of inputs, but not all of them, and of the others, each summed likewise. So
/// those of 4 are (0 + 1) + (2 + 3). The result may be one of the inputs.
void ReducePairwise(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                    void* result, int64_t count);

}  // namespace weft::engine
