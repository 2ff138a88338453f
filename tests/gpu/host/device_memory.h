#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::host_cuda {

// The devices and their memory: mappings that nothing can reach but kernels and copies while they
// run, so that a host that follows a device pointer dies on the spot. AddressSanitizer sees gaps
// between allocations and what was freed.

/// Devices of this process: 1, unless a test wants more.
int DeviceCount();
void SetDeviceCount(int count);

/// That of the calling thread, 0 at first; false when there is none such.
int CurrentDevice();
bool SetCurrentDevice(int device);

/// On the current device, as all that names none. Aligned to 256 bytes, all 0xff; null when the
/// device is full.
void* AllocateDeviceMemory(size_t bytes);
void FreeDeviceMemory(void* memory);

/// All `bytes` from `at` lie in the mapping of a device; which one, or -1.
bool IsDeviceMemory(const void* at, size_t bytes);
int DeviceHolding(const void* at, size_t bytes);

/// Host memory that a device can reach: page-locked.
void* AllocatePinnedMemory(size_t bytes);
void FreePinnedMemory(void* memory);
bool IsPinnedMemory(const void* at, size_t bytes);

/// Bytes that the device may hold from now on, all allocations together.
void LimitDeviceMemory(size_t bytes);

/// Free and total bytes of the device.
void DeviceMemoryInfo(size_t* free, size_t* total);

/// Calls of AllocateDeviceMemory on all devices since the start of the process.
int64_t DeviceAllocations();

/// Opens the memory of all devices for as long as it lives. From any thread; may be nested.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace weft::host_cuda
