#include "kernels/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scoped_device.h"

namespace weft::kernels::cuda {

namespace {

Result<AttentionChoice> AttentionFromEnvironment() {
  const char* text = std::getenv("WEFT_ATTENTION");
  const std::string_view choice = text != nullptr ? text : "own";
  if (choice == "own") return AttentionChoice::kOwn;
  if (choice == "cudnn") return AttentionChoice::kCudnn;
  if (choice == "cudnn-only") return AttentionChoice::kCudnnOnly;
  return InvalidError("WEFT_ATTENTION is " + std::string(choice) +
                      "; hint: own, cudnn or cudnn-only");
}

Result<Sparse24Choice> Sparse24FromEnvironment() {
  const char* text = std::getenv("WEFT_SPARSE24");
  const std::string_view choice = text != nullptr ? text : "own";
  if (choice == "own") return Sparse24Choice::kOwn;
  if (choice == "cusparselt") return Sparse24Choice::kCusparseLt;
  return InvalidError("WEFT_SPARSE24 is " + std::string(choice) + "; hint: own or cusparselt");
}

}  // namespace

Status RuntimeError(std::string_view op, std::string_view call, cudaError_t error) {
  std::string message = std::string(op) + ": " + std::string(call.substr(0, call.find('('))) +
                        ": " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) return ExhaustedError(std::move(message));
  if (error == cudaErrorNoDevice) return UnavailableError(std::move(message));
  return InternalError(std::move(message));
}

int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

DeviceMemory::~DeviceMemory() {
  // A failure here is one of earlier work, which Synchronize() reports.
  if (data_ != nullptr) (void)cudaFree(data_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<DeviceMemory> DeviceMemory::Allocate(int device, size_t bytes) {
  const std::string op =
      "allocating " + std::to_string(bytes) + " bytes on CUDA device " + std::to_string(device);
  const ScopedDevice use(device);
  WEFT_RETURN_IF_CUDA_ERROR(op, use.status());
  DeviceMemory memory;
  memory.device_ = device;
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMalloc(&memory.data_, bytes));
  memory.bytes_ = bytes;
  return Result<DeviceMemory>(std::move(memory));
}

Status DeviceMemory::CopyFrom(const void* host, size_t bytes, size_t offset) {
  WEFT_CHECK(offset <= bytes_ && bytes <= bytes_ - offset, "copy past the end of device memory");
  WEFT_RETURN_IF_CUDA_ERROR(
      "copying to the device",
      cudaMemcpy(static_cast<char*>(data_) + offset, host, bytes, cudaMemcpyHostToDevice));
  // It returns when the bytes are staged, and streams of ours do not wait for the default one.
  WEFT_RETURN_IF_CUDA_ERROR("copying to the device", cudaDeviceSynchronize());
  return OkStatus();
}

Status DeviceMemory::CopyTo(void* host, size_t bytes) const {
  WEFT_CHECK(bytes <= bytes_, "copy past the end of device memory");
  WEFT_RETURN_IF_CUDA_ERROR("copying from the device", cudaDeviceSynchronize());
  WEFT_RETURN_IF_CUDA_ERROR("copying from the device",
                            cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost));
  return OkStatus();
}

Result<std::unique_ptr<StreamState>> StreamState::Create(int device, StreamOptions options) {
  const std::string op = "opening a stream on CUDA device " + std::to_string(device);
  if (device < 0 || device >= DeviceCount()) {
    return UnavailableError(op + ": this machine has " + std::to_string(DeviceCount()) +
                            "; hint: nvidia-smi lists those that the driver sees");
  }
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaSetDevice(device));
  std::unique_ptr<StreamState> state(new StreamState);
  state->device_ = device;
  state->options_ = options;
  if (options.attention.has_value()) {
    state->attention_ = *options.attention;
  } else {
    WEFT_ASSIGN_OR_RETURN(state->attention_, AttentionFromEnvironment());
  }
  if (options.sparse24.has_value()) {
    state->sparse24_ = *options.sparse24;
  } else {
    WEFT_ASSIGN_OR_RETURN(state->sparse24_, Sparse24FromEnvironment());
  }
  DeviceLimits& limits = state->limits_;
  for (auto [value, attribute] :
       {std::pair(&limits.multiprocessors, cudaDevAttrMultiProcessorCount),
        std::pair(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin),
        std::pair(&limits.major, cudaDevAttrComputeCapabilityMajor),
        std::pair(&limits.minor, cudaDevAttrComputeCapabilityMinor)}) {
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaDeviceGetAttribute(value, attribute, device));
  }
  if (limits.major > options.newest) {
    limits.major = options.newest;
    limits.minor = 9;
  }
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaStreamCreateWithFlags(&state->handle_, cudaStreamNonBlocking));
  return Result<std::unique_ptr<StreamState>>(std::move(state));
}

StreamState::~StreamState() {
  if (handle_ != nullptr) (void)cudaStreamDestroy(handle_);
}

Result<void*> StreamState::Scratch(std::string_view op, size_t bytes) {
  if (bytes > scratch_.bytes() || options_.checked) {
    cudaStreamCaptureStatus capture;
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaStreamIsCapturing(handle_, &capture));
    if (capture != cudaStreamCaptureStatusNone) {
      return InternalError(std::string(op) + ": scratch memory would grow to " +
                           std::to_string(bytes) +
                           " bytes within a graph; hint: run the step once before capturing it");
    }
    if (scratch_.bytes() > 0) outgrown_.push_back(std::exchange(scratch_, DeviceMemory()));
    if (options_.checked) FreeOutgrown();
    WEFT_ASSIGN_OR_RETURN(scratch_, DeviceMemory::Allocate(device_, std::max<size_t>(bytes, 1)));
    if (options_.checked) {
      WEFT_RETURN_IF_CUDA_ERROR(op, cudaMemsetAsync(scratch_.data(), 0xff, bytes, handle_));
    }
  }
  return scratch_.data();
}

Status StreamState::Synchronize() {
  WEFT_RETURN_IF_CUDA_ERROR("running the stream", cudaStreamSynchronize(handle_));
  return OkStatus();
}

}  // namespace weft::kernels::cuda
