#pragma once

#include <cstdint>

#include "kernels/step_value.h"
#include "kernels/stream.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/progress_observer.h"
#include "worker/engine/tensor/step_numbers.h"

namespace weft::engine {

class HostMemoryPool;

/// All that code of the engine needs besides its arguments. One per rank; not thread-safe.
struct Context {
  Stream stream;
  Allocator* allocator = nullptr;
  HostMemoryPool* host = nullptr;        ///< Where offloaded state is; none without offload.
  Profiler* profiler = nullptr;          ///< May be null.
  uint64_t seed = 0;                     ///< Of the job: initial weights, dropout.
  int64_t step = 0;                      ///< Optimizer step under way; part of every dropout key.
  const StepNumbers* numbers = nullptr;  ///< Of the step under way, on the device; or none.
  ProgressObserver* observer = nullptr;  ///< May be null.

  /// A part of something long is done, see ProgressObserver::OnProgress.
  void MarkProgress() const {
    if (observer != nullptr) observer->OnProgress();
  }

  /// One of these for an operation, `now` being what it is in the step under way.
  template <class T>
  kernels::StepValue<T> Number(T now, T StepNumbers::*which) const {
    return {now, numbers == nullptr ? nullptr : &(numbers->*which)};
  }
};

}  // namespace weft::engine
