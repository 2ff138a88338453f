#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cuda/device.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

/// What a rank computes on: the stream and the memory of its Context, and of nobody else. Outlives
/// all tensors. Not thread-safe except its allocator.
class ComputeDevice {
 public:
  struct Options {
    Device device;
    /// Memory of the host as a tier of its own below the device's; none without offload.
    std::optional<HostMemoryPool::Options> host = std::nullopt;
    int64_t limit_bytes = 0;     ///< Most that the allocator holds; 0: no limit.
    int64_t expected_bytes = 0;  ///< Of a CUDA device, taken at once; 0: as they are needed.
    size_t chunk_bytes = size_t{256} << 20;  ///< Of a CUDA device, when they are.
  };

  /// kUnavailable where there is no such device, or no back end for it in this build; kExhausted
  /// when the device has not as much memory.
  static Result<std::unique_ptr<ComputeDevice>> Open(const Options& options);

  Allocator& allocator() { return *allocator_; }
  /// None without offload.
  HostMemoryPool* host() { return host_.get(); }
  Stream stream() { return stream_ == nullptr ? Stream() : stream_->stream(); }

  /// The seed is the caller's.
  Context NewContext() {
    return {.stream = stream(), .allocator = allocator_.get(), .host = host_.get()};
  }

  /// Waits for everything enqueued, and returns what went wrong in it.
  Status Synchronize() { return stream_ == nullptr ? OkStatus() : stream_->Synchronize(); }

 private:
  ComputeDevice() = default;

  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<HostMemoryPool>
      host_;  ///< Or none; its jobs end before the device's memory goes.
  std::unique_ptr<kernels::cuda::StreamState> stream_;  ///< None on a CPU.
};

}  // namespace weft::engine
