#pragma once

#include <cstdint>

#include "kernels/stream.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/profiler.h"

namespace weft::engine {

/// All that code of the engine needs besides its arguments. One per rank; not thread-safe.
struct Context {
  Stream stream;
  Allocator* allocator = nullptr;
  Profiler* profiler = nullptr;  ///< May be null.
  uint64_t seed = 0;             ///< Of the job: initial weights, dropout.
  int64_t step = 0;              ///< Optimizer step under way; part of every dropout key.
};

}  // namespace weft::engine
