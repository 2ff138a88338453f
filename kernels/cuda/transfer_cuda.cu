#include "kernels/cuda/transfer.h"

#include <cuda_runtime.h>

#include "kernels/cuda/pinned_arena.h"
#include "kernels/cuda/scoped_device.h"

namespace weft::kernels::cuda {

PinnedMemory::~PinnedMemory() {
  PinnedArena::OfProcess().Give(data_);
}

Result<PinnedMemory> PinnedMemory::Allocate(size_t bytes) {
  PinnedMemory memory;
  WEFT_ASSIGN_OR_RETURN(memory.data_, PinnedArena::OfProcess().Take(bytes));
  memory.bytes_ = bytes;
  return Result<PinnedMemory>(std::move(memory));
}

Event::~Event() {
  if (handle_ != nullptr) (void)cudaEventDestroy(handle_);
}

Result<Event> Event::Create(const Stream& stream, bool timed) {
  constexpr const char* kOp = "making an event";
  const ScopedDevice use(stream.device.index);
  WEFT_RETURN_IF_CUDA_ERROR(kOp, use.status());
  Event event;
  WEFT_RETURN_IF_CUDA_ERROR(
      kOp,
      cudaEventCreateWithFlags(&event.handle_, timed ? cudaEventDefault : cudaEventDisableTiming));
  return Result<Event>(std::move(event));
}

Status Event::Place(const Stream& stream) {
  constexpr const char* kOp = "recording an event";
  CUstream_st* const handle = stream.cuda->handle();
  cudaStreamCaptureStatus capture;
  WEFT_RETURN_IF_CUDA_ERROR(kOp, cudaStreamIsCapturing(handle, &capture));
  // Within a graph it is a point of every run of it, for whoever waits outside.
  WEFT_RETURN_IF_CUDA_ERROR(
      kOp, capture == cudaStreamCaptureStatusNone
               ? cudaEventRecord(handle_, handle)
               : cudaEventRecordWithFlags(handle_, handle, cudaEventRecordExternal));
  return OkStatus();
}

Status Event::Block(const Stream& stream) const {
  WEFT_RETURN_IF_CUDA_ERROR("waiting for another stream",
                            cudaStreamWaitEvent(stream.cuda->handle(), handle_, 0));
  return OkStatus();
}

Status Event::Wait() const {
  WEFT_RETURN_IF_CUDA_ERROR("running the stream", cudaEventSynchronize(handle_));
  return OkStatus();
}

Result<bool> Event::Passed() const {
  const cudaError_t state = cudaEventQuery(handle_);
  if (state == cudaErrorNotReady) return false;
  if (state != cudaSuccess) return RuntimeError("running the stream", "cudaEventQuery", state);
  return true;
}

Result<double> Event::SecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  WEFT_RETURN_IF_CUDA_ERROR("reading an event",
                            cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_));
  return static_cast<double>(milliseconds) / 1000;
}

Status CopyToDevice(const Stream& stream, void* to, const void* host, size_t bytes) {
  WEFT_RETURN_IF_CUDA_ERROR(
      "copying to the device",
      cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream.cuda->handle()));
  return OkStatus();
}

Status CopyToHost(const Stream& stream, void* host, const void* from, size_t bytes) {
  WEFT_RETURN_IF_CUDA_ERROR(
      "copying from the device",
      cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream.cuda->handle()));
  return OkStatus();
}

Status CopyRowsOnDevice(const Stream& stream, void* to, size_t to_pitch, const void* from,
                        size_t from_pitch, size_t width, size_t rows) {
  WEFT_RETURN_IF_CUDA_ERROR("copying rows",
                            cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows,
                                              cudaMemcpyDeviceToDevice, stream.cuda->handle()));
  return OkStatus();
}

Status FillBytes(const Stream& stream, void* to, uint8_t value, size_t bytes) {
  WEFT_RETURN_IF_CUDA_ERROR("filling memory",
                            cudaMemsetAsync(to, value, bytes, stream.cuda->handle()));
  return OkStatus();
}

Result<MemoryInfo> MemoryOf(int device) {
  constexpr const char* kOp = "asking for the memory of a device";
  const ScopedDevice use(device);
  WEFT_RETURN_IF_CUDA_ERROR(kOp, use.status());
  MemoryInfo info;
  WEFT_RETURN_IF_CUDA_ERROR(kOp, cudaMemGetInfo(&info.free, &info.total));
  return info;
}

}  // namespace weft::kernels::cuda
