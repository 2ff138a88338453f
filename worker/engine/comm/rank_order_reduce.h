#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// result[i] = the reduction of inputs[0][i], inputs[1][i], ... in this order, in f32, rounded once
/// to `dtype`, which is that of inputs and result: one of kFloatTypes. The result may be one of the
/// inputs.
void ReduceInRankOrder(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                       void* result, int64_t count);

}  // namespace weft::engine
