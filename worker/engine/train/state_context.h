#pragma once

#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

/// For work on parameters and the optimizer's state, where these are: on the device of `context` or
/// in its host memory pool.
inline Context StateContextOf(const Context& context, const ParameterSet& parameters) {
  return parameters.offloaded() ? InHostMemoryPool(context) : context;
}

}  // namespace weft::engine
