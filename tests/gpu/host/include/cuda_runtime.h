#pragma once

// Replaces the header of the CUDA toolkit where kernels are compiled as C++ and run by
// tests/gpu/host/executor.h. Holds what our kernels use; a kernel that needs more adds it here.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda.h>

#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/executor.h"
#include "tests/gpu/host/streams.h"

// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier): the names are CUDA's.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define WEFT_HERE ::weft::host_cuda::Site site = ::weft::host_cuda::Site::Here()

inline void __syncthreads(WEFT_HERE) {
  weft::host_cuda::SyncThreads(false, site);
}
inline int __syncthreads_or(int predicate, WEFT_HERE) {
  return weft::host_cuda::SyncThreads(predicate != 0, site).count > 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate, WEFT_HERE) {
  const weft::host_cuda::Votes votes = weft::host_cuda::SyncThreads(predicate != 0, site);
  return votes.count == votes.threads ? 1 : 0;
}
inline int __syncthreads_count(int predicate, WEFT_HERE) {
  return weft::host_cuda::SyncThreads(predicate != 0, site).count;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, WEFT_HERE) {
  weft::host_cuda::SyncWarp(mask, site);
}

namespace weft::host_cuda {

template <class T>
T FromLane(uint32_t mask, T value, uint32_t lane, Site site) {
  static_assert(sizeof(T) <= 8);
  uint32_t in[3] = {0, 0, lane}, out[2];
  std::memcpy(in, &value, sizeof value);
  WithWarp(mask, TakeFromLane, in, 3, out, 2, site);
  std::memcpy(&value, out, sizeof value);
  return value;
}

inline uint32_t Vote(uint32_t mask, int predicate, Site site) {
  const uint32_t in = predicate != 0 ? 1 : 0;
  uint32_t out = 0;
  WithWarp(mask, Ballot, &in, 1, &out, 1, site);
  return out;
}

}  // namespace weft::host_cuda

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, WEFT_HERE) {
  const auto size = static_cast<unsigned>(width);
  const unsigned first = weft::host_cuda::Lane() & ~(size - 1);
  return weft::host_cuda::FromLane(mask, value, first | (static_cast<unsigned>(lane) & (size - 1)),
                                   site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, WEFT_HERE) {
  const auto size = static_cast<unsigned>(width);
  const unsigned own = weft::host_cuda::Lane(), from = own ^ static_cast<unsigned>(bits);
  return weft::host_cuda::FromLane(mask, value, from < (own & ~(size - 1)) + size ? from : own,
                                   site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, WEFT_HERE) {
  const auto size = static_cast<unsigned>(width);
  const unsigned own = weft::host_cuda::Lane(), end = (own & ~(size - 1)) + size;
  return weft::host_cuda::FromLane(mask, value, own + by < end ? own + by : own, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, WEFT_HERE) {
  const auto size = static_cast<unsigned>(width);
  const unsigned own = weft::host_cuda::Lane(), first = own & ~(size - 1);
  return weft::host_cuda::FromLane(mask, value, own >= first + by ? own - by : own, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, WEFT_HERE) {
  return weft::host_cuda::Vote(mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, WEFT_HERE) {
  return weft::host_cuda::Vote(mask, predicate, site) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, WEFT_HERE) {
  return weft::host_cuda::Vote(mask, predicate, site) == mask ? 1 : 0;
}

#undef WEFT_HERE

// Atomic operations order nothing else, as on the device.
template <class T>
T atomicAdd(T* at, T value) {
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  T sum = static_cast<T>(old + value);
  while (!__atomic_compare_exchange(at, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    sum = static_cast<T>(old + value);
  }
  return old;
}
template <class T>
T atomicMax(T* at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
// Never fused, whatever the host's instruction set.
inline float __fmul_rn(float x, float y) {
  float product = x * y;
  asm("" : "+m"(product));
  return product;
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};

/// What went wrong in the last failed call of this thread.
inline std::string& WeftLaunchProblem() {
  static thread_local std::string problem;
  return problem;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorLaunchFailure:
      return WeftLaunchProblem().c_str();
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    default:
      return "invalid argument";
  }
}

using cudaStream_t = CUstream_st*;

/// The code of a call that ended with `problem`.
inline cudaError_t WeftOutcome(std::string problem) {
  WeftLaunchProblem() = std::move(problem);
  return WeftLaunchProblem().empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = weft::host_cuda::DeviceCount();
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return weft::host_cuda::SetCurrentDevice(device) ? cudaSuccess : cudaErrorInvalidDevice;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = weft::host_cuda::CurrentDevice();
  return cudaSuccess;
}

enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
/// A small Hopper: few multiprocessors, so that small tensors already need several rounds.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 3;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
  }
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (auto refused = weft::host_cuda::RefuseInCapture("device memory is taken"); !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  *memory = weft::host_cuda::AllocateDeviceMemory(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  if (auto refused = weft::host_cuda::RefuseInCapture("device memory is given back");
      !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  weft::host_cuda::SynchronizeAll();
  weft::host_cuda::FreeDeviceMemory(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  weft::host_cuda::DeviceMemoryInfo(free, total);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (auto refused = weft::host_cuda::RefuseInCapture("pinned memory is taken"); !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  *memory = weft::host_cuda::AllocatePinnedMemory(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  if (auto refused = weft::host_cuda::RefuseInCapture("pinned memory is given back");
      !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  weft::host_cuda::SynchronizeAll();
  weft::host_cuda::FreePinnedMemory(memory);
  return cudaSuccess;
}

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
/// That pointers are where the kind says they are.
inline bool WeftCopyFits(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  return bytes == 0 || (weft::host_cuda::IsDeviceMemory(from, bytes) == from_device &&
                        weft::host_cuda::IsDeviceMemory(to, bytes) == to_device);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  if (!WeftCopyFits(to, from, bytes, kind)) return cudaErrorInvalidValue;
  return WeftOutcome(weft::host_cuda::CopyLater(stream, to, from, bytes));
}
/// Waits for no stream that was made with cudaStreamNonBlocking.
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (auto refused = weft::host_cuda::RefuseInCapture("the default stream is used");
      !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  if (!WeftCopyFits(to, from, bytes, kind)) return cudaErrorInvalidValue;
  const weft::host_cuda::DeviceAccess open;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (!WeftCopyFits(to, from, width, kind)) return cudaErrorInvalidValue;
  return WeftOutcome(weft::host_cuda::Enqueue(stream, [=]() -> std::string {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
    return "";
  }));
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && !weft::host_cuda::IsDeviceMemory(to, bytes)) return cudaErrorInvalidValue;
  return WeftOutcome(weft::host_cuda::Enqueue(stream, [=]() -> std::string {
    if (bytes > 0) std::memset(to, value, bytes);
    return "";
  }));
}

enum { cudaStreamNonBlocking = 1 };
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = weft::host_cuda::NewStream();
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return WeftOutcome(weft::host_cuda::Synchronize(stream));
}
inline cudaError_t cudaDeviceSynchronize() {
  if (auto refused = weft::host_cuda::RefuseInCapture("the device is waited for");
      !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  weft::host_cuda::SynchronizeAll();
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  weft::host_cuda::EndStream(stream);
  return cudaSuccess;
}
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = weft::host_cuda::IsCaptured(stream) ? cudaStreamCaptureStatusActive
                                                : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return WeftOutcome(weft::host_cuda::BeginCapture(stream));
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::string failure;
  *graph = weft::host_cuda::EndCapture(stream, &failure).release();
  return WeftOutcome(std::move(failure));
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                        unsigned long long) {
  *exec = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return WeftOutcome(weft::host_cuda::LaunchGraph(*exec, stream));
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

using cudaEvent_t = CUevent_st*;
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = weft::host_cuda::NewEvent();
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  return WeftOutcome(weft::host_cuda::RecordEvent(event, stream, false));
}
enum { cudaEventRecordDefault = 0, cudaEventRecordExternal = 1 };
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                            unsigned flags) {
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  return WeftOutcome(weft::host_cuda::RecordEvent(event, stream, flags == cudaEventRecordExternal));
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (auto refused = weft::host_cuda::RefuseInCapture("an event is queried"); !refused.empty()) {
    return WeftOutcome(std::move(refused));
  }
  return weft::host_cuda::HasPassed(event) ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return WeftOutcome(weft::host_cuda::Synchronize(event));
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return WeftOutcome(weft::host_cuda::WaitForEvent(stream, event));
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = weft::host_cuda::MillisecondsBetween(from, to);
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
};
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int) {
  weft::host_cuda::AskForShared(reinterpret_cast<const void*>(kernel));
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace weft::host_cuda {

/// A pointer among the arguments of a kernel leads where kernels of the device can go.
template <class T>
bool KernelMayHave(int device, const T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    return argument == nullptr || DeviceHolding(argument, 1) == device ||
           IsPinnedMemory(argument, 1);
  }
  return true;
}

}  // namespace weft::host_cuda

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  static_assert((0 + ... + sizeof(Params)) <= 32764, "too many bytes of kernel arguments");
  const auto values =
      std::make_shared<std::tuple<std::remove_cvref_t<Params>...>>(std::forward<Args>(args)...);
  const int device = config->stream->device;
  if (device != weft::host_cuda::CurrentDevice()) return cudaErrorInvalidResourceHandle;
  const bool reachable = std::apply(
      [device](const auto&... each) {
        return (true && ... && weft::host_cuda::KernelMayHave(device, each));
      },
      *values);
  if (!reachable) return WeftOutcome("a kernel is given a pointer to memory of the host");
  const cudaLaunchConfig_t shape = *config;
  return WeftOutcome(weft::host_cuda::Enqueue(config->stream, [kernel, values, shape] {
    return weft::host_cuda::Run({.grid = {shape.gridDim.x, shape.gridDim.y, shape.gridDim.z},
                                 .block = {shape.blockDim.x, shape.blockDim.y, shape.blockDim.z},
                                 .dynamic_shared_bytes = shape.dynamicSmemBytes,
                                 .asked_for_shared = weft::host_cuda::HasAskedForShared(
                                     reinterpret_cast<const void*>(kernel)),
                                 .body = [kernel, &values] { std::apply(kernel, *values); }});
  }));
}

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
