#include "tests/gpu/host/device_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "common/check.h"
#include "common/number.h"
#include "tests/gpu/host/fiber_switch.h"
#include "tests/gpu/host/pinned_count.h"
#include "tests/gpu/host/streams.h"

namespace weft::host_cuda {
namespace {

constexpr size_t kMappingBytes = size_t{32} << 30;
constexpr size_t kAlignment = 256;
constexpr size_t kGap = 256;  // Behind each allocation.
constexpr size_t kPage = 4096;

constexpr int kMostDevices = 8;

// Guards all that follows; held for a moment only.
std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
int device_count = 1;
int open = 0;
int64_t allocations = 0;
int64_t pinned_allocations = 0;
size_t pinned_limit = std::numeric_limits<size_t>::max();
thread_local int current = 0;

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
    ++allocations;
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
      if (open > 0) Protect(PROT_READ | PROT_WRITE);
    }
    live_[at] = {bytes, size};
    held_ += bytes;
    AsanUnpoison(at, bytes);
    AsanPoison(at + bytes, size - bytes);
    if (open == 0) Protect(PROT_READ | PROT_WRITE);
    if (!WorkIsSkipped()) {
      for (size_t i = 0; i < bytes; ++i) const_cast<volatile uint8_t*>(at)[i] = 0xff;
    }
    if (open == 0) Protect(PROT_NONE);
    return at;
  }

  void Free(void* memory) {
    const auto found = live_.find(static_cast<uint8_t*>(memory));
    WEFT_CHECK(found != live_.end(), "what is freed is no device memory");
    AsanPoison(memory, found->second.size);
    held_ -= found->second.bytes;
    free_.emplace(found->second.size, found->first);
    live_.erase(found);
    if (!live_.empty() || open > 0) return;
    free_.clear();
    used_ = 0;
  }

  void Protect(int how) {
    if (used_ == 0) return;
    WEFT_CHECK(mprotect(base_, RoundUp(used_, kPage), how) == 0, "mprotect");
  }

  bool Holds(const void* at, size_t bytes) const {
    const auto* from = static_cast<const uint8_t*>(at);
    return from >= base_ && from + bytes <= base_ + kMappingBytes;
  }

  void Limit(size_t bytes) { limit_ = bytes; }
  void Info(size_t* free, size_t* total) const {
    *free = limit_ - held_;
    *total = limit_;
  }

 private:
  struct Piece {
    size_t bytes;
    size_t size;
  };

  uint8_t* base_ = nullptr;
  size_t used_ = 0;
  size_t held_ = 0;
  size_t limit_ = size_t{16} << 30;
  std::map<uint8_t*, Piece> live_;
  std::multimap<size_t, uint8_t*> free_;  // By size.
};

// Those that have been asked for.
std::array<Device*, kMostDevices> devices = {};

Device& CurrentOne() {
  Device*& device = devices[static_cast<size_t>(current)];
  if (device == nullptr) device = new Device;
  return *device;
}

int Holder(const void* at, size_t bytes) {
  for (int i = 0; i < kMostDevices; ++i) {
    const Device* device = devices[static_cast<size_t>(i)];
    if (device != nullptr && device->Holds(at, bytes)) return i;
  }
  return -1;
}

void ProtectAll(int how) {
  for (Device* device : devices) {
    if (device != nullptr) device->Protect(how);
  }
}

std::map<uint8_t*, size_t>& Pinned() {
  static auto* pinned = new std::map<uint8_t*, size_t>;
  return *pinned;
}

}  // namespace

int DeviceCount() {
  const std::lock_guard lock(Mutex());
  return device_count;
}
void SetDeviceCount(int count) {
  WEFT_CHECK(count > 0 && count <= kMostDevices, "number of devices");
  const std::lock_guard lock(Mutex());
  device_count = count;
}
int CurrentDevice() {
  return current;
}
bool SetCurrentDevice(int device) {
  if (device < 0 || device >= DeviceCount()) return false;
  current = device;
  return true;
}

void* AllocateDeviceMemory(size_t bytes) {
  const std::lock_guard lock(Mutex());
  return CurrentOne().Allocate(bytes);
}
void FreeDeviceMemory(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(Mutex());
  const int holder = Holder(memory, 1);
  WEFT_CHECK(holder >= 0, "what is freed is no device memory");
  devices[static_cast<size_t>(holder)]->Free(memory);
}
int DeviceHolding(const void* at, size_t bytes) {
  const std::lock_guard lock(Mutex());
  return Holder(at, bytes);
}
bool IsDeviceMemory(const void* at, size_t bytes) {
  return DeviceHolding(at, bytes) >= 0;
}
void* AllocatePinnedMemory(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kPage, RoundUp(bytes, kPage)) != 0) return nullptr;
  const std::lock_guard lock(Mutex());
  ++pinned_allocations;
  size_t held = bytes;
  for (const auto& other : Pinned()) held += other.second;
  if (held > pinned_limit) {
    std::free(memory);
    return nullptr;
  }
  Pinned()[static_cast<uint8_t*>(memory)] = bytes;
  return memory;
}
void FreePinnedMemory(void* memory) {
  const std::lock_guard lock(Mutex());
  Pinned().erase(static_cast<uint8_t*>(memory));
  std::free(memory);
}
bool IsPinnedMemory(const void* at, size_t bytes) {
  const std::lock_guard lock(Mutex());
  const auto* from = static_cast<const uint8_t*>(at);
  auto found = Pinned().upper_bound(const_cast<uint8_t*>(from));
  if (found == Pinned().begin()) return false;
  --found;
  return from + bytes <= found->first + found->second;
}
void LimitDeviceMemory(size_t bytes) {
  const std::lock_guard lock(Mutex());
  CurrentOne().Limit(bytes);
}
void DeviceMemoryInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(Mutex());
  CurrentOne().Info(free, total);
}
int64_t DeviceAllocations() {
  const std::lock_guard lock(Mutex());
  return allocations;
}

int64_t PinnedAllocations() {
  const std::lock_guard lock(Mutex());
  return pinned_allocations;
}
void LimitPinnedMemory(size_t bytes) {
  const std::lock_guard lock(Mutex());
  pinned_limit = bytes;
}

DeviceAccess::DeviceAccess() {
  const std::lock_guard lock(Mutex());
  if (open++ == 0) ProtectAll(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  const std::lock_guard lock(Mutex());
  if (--open == 0) ProtectAll(PROT_NONE);
}

}  // namespace weft::host_cuda
