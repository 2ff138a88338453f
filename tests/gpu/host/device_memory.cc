#include "tests/gpu/host/device_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "common/check.h"
#include "tests/gpu/host/fiber_switch.h"
#include "tests/gpu/host/streams.h"

namespace weft::host_cuda {
namespace {

constexpr size_t kMappingBytes = size_t{32} << 30;
constexpr size_t kAlignment = 256;
constexpr size_t kGap = 256;  // Behind each allocation.
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class Device {
 public:
  Device() {
    // Not by mmap(), which ThreadSanitizer would take for a write.
    const long mapping = syscall(SYS_mmap, nullptr, kMappingBytes, PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WEFT_CHECK(mapping != -1, "no address space for the device's memory");
    base_ = reinterpret_cast<uint8_t*>(mapping);  // NOLINT(performance-no-int-to-ptr)
  }

  void* Allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    ++allocations_;
    const size_t size = RoundUp(bytes, kAlignment) + kGap;
    if (held_ + bytes > limit_) return nullptr;
    uint8_t* at = nullptr;
    if (const auto found = free_.find(size); found != free_.end()) {
      at = found->second;
      free_.erase(found);
    } else {
      if (used_ + size > kMappingBytes) return nullptr;
      at = base_ + used_;
      used_ += size;
      if (open_ > 0) Protect(PROT_READ | PROT_WRITE);
    }
    live_[at] = {bytes, size};
    held_ += bytes;
    AsanUnpoison(at, bytes);
    AsanPoison(at + bytes, size - bytes);
    if (open_ == 0) Protect(PROT_READ | PROT_WRITE);
    if (!WorkIsSkipped()) {
      for (size_t i = 0; i < bytes; ++i) const_cast<volatile uint8_t*>(at)[i] = 0xff;
    }
    if (open_ == 0) Protect(PROT_NONE);
    return at;
  }

  void Free(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<uint8_t*>(memory));
    WEFT_CHECK(found != live_.end(), "what is freed is no device memory");
    AsanPoison(memory, found->second.size);
    held_ -= found->second.bytes;
    free_.emplace(found->second.size, found->first);
    live_.erase(found);
    if (!live_.empty() || open_ > 0) return;
    free_.clear();
    used_ = 0;
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE);
  }

  bool Holds(const void* at, size_t bytes) const {
    const auto* from = static_cast<const uint8_t*>(at);
    return from >= base_ && from + bytes <= base_ + kMappingBytes;
  }

  void* AllocatePinned(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kPage, RoundUp(bytes, kPage)) != 0) return nullptr;
    const std::lock_guard lock(mutex_);
    pinned_[static_cast<uint8_t*>(memory)] = bytes;
    return memory;
  }
  void FreePinned(void* memory) {
    const std::lock_guard lock(mutex_);
    pinned_.erase(static_cast<uint8_t*>(memory));
    std::free(memory);
  }
  bool IsPinned(const void* at, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* from = static_cast<const uint8_t*>(at);
    auto found = pinned_.upper_bound(const_cast<uint8_t*>(from));
    if (found == pinned_.begin()) return false;
    --found;
    return from + bytes <= found->first + found->second;
  }

  void Limit(size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  void Info(size_t* free, size_t* total) {
    const std::lock_guard lock(mutex_);
    *free = limit_ - held_;
    *total = limit_;
  }
  int64_t allocations() {
    const std::lock_guard lock(mutex_);
    return allocations_;
  }

 private:
  struct Piece {
    size_t bytes;
    size_t size;
  };

  void Protect(int how) {
    if (used_ == 0) return;
    WEFT_CHECK(mprotect(base_, RoundUp(used_, kPage), how) == 0, "mprotect");
  }

  std::mutex mutex_;
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
  size_t held_ = 0;
  size_t limit_ = size_t{16} << 30;
  int open_ = 0;
  int64_t allocations_ = 0;
  std::map<uint8_t*, Piece> live_;
  std::multimap<size_t, uint8_t*> free_;  // By size.
  std::map<uint8_t*, size_t> pinned_;
};

Device& TheDevice() {
  static auto* device = new Device;
  return *device;
}

}  // namespace

void* AllocateDeviceMemory(size_t bytes) {
  return TheDevice().Allocate(bytes);
}
void FreeDeviceMemory(void* memory) {
  TheDevice().Free(memory);
}
bool IsDeviceMemory(const void* at, size_t bytes) {
  return TheDevice().Holds(at, bytes);
}
void* AllocatePinnedMemory(size_t bytes) {
  return TheDevice().AllocatePinned(bytes);
}
void FreePinnedMemory(void* memory) {
  TheDevice().FreePinned(memory);
}
bool IsPinnedMemory(const void* at, size_t bytes) {
  return TheDevice().IsPinned(at, bytes);
}
void LimitDeviceMemory(size_t bytes) {
  TheDevice().Limit(bytes);
}
void DeviceMemoryInfo(size_t* free, size_t* total) {
  TheDevice().Info(free, total);
}
int64_t DeviceAllocations() {
  return TheDevice().allocations();
}

DeviceAccess::DeviceAccess() {
  TheDevice().Open();
}
DeviceAccess::~DeviceAccess() {
  TheDevice().Close();
}

}  // namespace weft::host_cuda
