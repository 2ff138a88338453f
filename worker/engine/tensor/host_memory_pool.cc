#include "worker/engine/tensor/host_memory_pool.h"

#include <utility>

#include "worker/engine/tensor/pinned_host_memory.h"

namespace weft::engine {

void UpdateProgress::Start() {
  std::lock_guard lock(mutex_);
  done_ = 0;
}

void UpdateProgress::Reach(int64_t index) {
  std::lock_guard lock(mutex_);
  done_ = index;
  changed_.notify_all();
}

void UpdateProgress::Finish() {
  Reach(INT64_MAX);
}

void UpdateProgress::WaitFor(int64_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return index < done_; });
}

Result<std::unique_ptr<HostMemoryPool>> HostMemoryPool::New(const Options& options, Device device) {
  const bool pins = device.type == DeviceType::kCuda;
  std::unique_ptr<MemorySource> memory = std::make_unique<HostMemory>();
  if (pins) memory = std::make_unique<PinnedHostMemory>();
  std::unique_ptr<HostMemoryPool> tier(new HostMemoryPool(options, std::move(memory)));
  if (!pins) {
    tier->down_ = std::make_unique<TransferQueue>(options.link_bytes_per_second);
    tier->up_ = std::make_unique<TransferQueue>(options.link_bytes_per_second);
    return tier;
  }
  WEFT_ASSIGN_OR_RETURN(tier->down_, TransferQueue::New(device.index, LinkDirection::kDown));
  WEFT_ASSIGN_OR_RETURN(tier->up_, TransferQueue::New(device.index, LinkDirection::kUp));
  return tier;
}

Context InHostMemoryPool(Context context) {
  context.stream = Stream();
  context.allocator = &context.host->allocator();
  context.numbers = nullptr;
  return context;
}

bool IsInHostMemoryPool(const Context& context) {
  return context.host != nullptr && context.allocator == &context.host->allocator();
}

}  // namespace weft::engine
