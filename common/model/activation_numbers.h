#pragma once

#include <cstdint>

#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/precision.h"

namespace weft {

/// Bytes of an element of activations.
inline int64_t ElementOf(const MemoryInputs& inputs) {
  return ElementBytes(inputs.precision->activations);
}

/// f32 numbers a norm keeps of a token: mean and deviation, or the deviation.
inline int64_t NormStatistics(const ModelSpec& model) {
  return model.family == "llama" ? 1 : 2;
}

/// 32-bit numbers that a router keeps of a token: probabilities, and of each choice the expert, its
/// weight and its place.
inline int64_t RouteNumbers(const ModelSpec& model) {
  return model.experts > 0 ? model.experts + 3 * model.experts_per_token : 0;
}

}  // namespace weft
