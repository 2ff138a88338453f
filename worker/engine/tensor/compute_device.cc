#include "worker/engine/tensor/compute_device.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/transfer.h"
#include "worker/engine/tensor/device_arena.h"

namespace weft::engine {

Result<std::unique_ptr<ComputeDevice>> ComputeDevice::Open(const Options& options) {
  std::unique_ptr<ComputeDevice> device(new ComputeDevice);
  if (options.device.type == DeviceType::kCpu) {
    device->allocator_ = std::make_unique<Allocator>(options.limit_bytes);
    if (options.host) {
      WEFT_ASSIGN_OR_RETURN(device->host_, HostMemoryPool::New(*options.host, options.device));
    }
    return device;
  }
  const int index = options.device.index;
  WEFT_ASSIGN_OR_RETURN(device->stream_, kernels::cuda::StreamState::Create(index));
  WEFT_ASSIGN_OR_RETURN(const kernels::cuda::MemoryInfo memory, kernels::cuda::MemoryOf(index));
  // A wrong guess must not keep a job from running that would fit.
  int64_t first = std::min(options.expected_bytes, static_cast<int64_t>(memory.free));
  if (options.limit_bytes > 0) first = std::min(first, options.limit_bytes);
  WEFT_ASSIGN_OR_RETURN(auto arena,
                        DeviceArena::New({.device = index,
                                          .first_chunk_bytes = static_cast<size_t>(first),
                                          .chunk_bytes = options.chunk_bytes}));
  device->allocator_ = std::make_unique<Allocator>(std::move(arena), options.limit_bytes);
  if (options.host) {
    WEFT_ASSIGN_OR_RETURN(device->host_, HostMemoryPool::New(*options.host, options.device));
  }
  return device;
}

}  // namespace weft::engine
