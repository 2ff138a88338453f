#pragma once

#include <utility>

#include "common/status.h"
#include "kernels/stream.h"

struct CUgraphExec_st;

namespace weft::kernels::cuda {

/// Work of a stream that was recorded once and can be run again whole, for what one launch costs
/// the host. Kernels get the arguments they were recorded with: numbers that change are read from
/// memory (kernels/step_value.h), and memory that the work uses must be free for it each time. Not
/// thread-safe.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// What the calling thread enqueues on `stream` from now on is recorded and not run. Until End
  /// the thread may not wait for a device or take memory from it.
  static Status Begin(const Stream& stream);

  /// Ends that, also after an error. kInternal when something was done that cannot be recorded.
  static Result<Graph> End(const Stream& stream);

  explicit operator bool() const { return handle_ != nullptr; }

  /// Enqueues the recorded work.
  Status Launch(const Stream& stream) const;

 private:
  CUgraphExec_st* handle_ = nullptr;
};

}  // namespace weft::kernels::cuda
