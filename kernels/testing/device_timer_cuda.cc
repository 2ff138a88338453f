#include <algorithm>
#include <utility>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/testing/device_timer.h"

namespace weft::kernels::testing {
namespace {

constexpr char kOp[] = "timing a CUDA device";

Status Check(const char* call, cudaError_t error) {
  return error == cudaSuccess ? OkStatus() : cuda::RuntimeError(kOp, call, error);
}

// A pair of events around each run.
class Events {
 public:
  Events() = default;
  ~Events() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  Status Record(cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    WEFT_RETURN_IF_ERROR(Check("cudaEventCreate", cudaEventCreate(&event)));
    events_.push_back(event);
    return Check("cudaEventRecord", cudaEventRecord(event, stream));
  }

  /// Seconds of the runs, in order, once the stream has done them.
  Result<std::vector<double>> Seconds() const {
    std::vector<double> seconds;
    for (size_t i = 0; i + 1 < events_.size(); i += 2) {
      float milliseconds = 0;
      WEFT_RETURN_IF_ERROR(Check("cudaEventElapsedTime",
                                 cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1])));
      seconds.push_back(milliseconds * 1e-3);
    }
    return seconds;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

}  // namespace

struct DeviceTimer::State {
  cuda::StreamState* stream;
  DeviceDescription description;
  cuda::DeviceMemory flushed;
};

DeviceTimer::DeviceTimer(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceTimer::~DeviceTimer() = default;

const DeviceDescription& DeviceTimer::description() const {
  return state_->description;
}

Result<std::unique_ptr<DeviceTimer>> DeviceTimer::Create(cuda::StreamState& stream) {
  const int device = stream.stream().device.index;
  auto state = std::make_unique<State>(State{.stream = &stream, .description = {}, .flushed = {}});
  DeviceDescription& description = state->description;
  cudaDeviceProp properties;
  WEFT_RETURN_IF_ERROR(
      Check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)));
  description.name = properties.name;
  description.multiprocessors = properties.multiProcessorCount;
  description.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  description.l2_bytes = properties.l2CacheSize;
  WEFT_RETURN_IF_ERROR(
      Check("cudaDriverGetVersion", cudaDriverGetVersion(&description.driver_version)));
  WEFT_RETURN_IF_ERROR(
      Check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&description.runtime_version)));
  const auto flush_bytes = std::max<size_t>(4 * properties.l2CacheSize, size_t{256} << 20);
  WEFT_ASSIGN_OR_RETURN(state->flushed, cuda::DeviceMemory::Allocate(device, flush_bytes));
  return std::unique_ptr<DeviceTimer>(new DeviceTimer(std::move(state)));
}

Result<std::vector<double>> DeviceTimer::Seconds(const std::function<Status()>& enqueue,
                                                 int repeats) {
  const cudaStream_t stream = state_->stream->handle();
  Events events;
  for (int i = 0; i < repeats; ++i) {
    WEFT_RETURN_IF_ERROR(
        Check("cudaMemsetAsync",
              cudaMemsetAsync(state_->flushed.data(), i & 1, state_->flushed.bytes(), stream)));
    WEFT_RETURN_IF_ERROR(events.Record(stream));
    WEFT_RETURN_IF_ERROR(enqueue());
    WEFT_RETURN_IF_ERROR(events.Record(stream));
  }
  WEFT_RETURN_IF_ERROR(state_->stream->Synchronize());
  return events.Seconds();
}

Result<std::vector<double>> DeviceTimer::CopySeconds(size_t bytes, int repeats) {
  const int device = state_->stream->stream().device.index;
  WEFT_ASSIGN_OR_RETURN(cuda::DeviceMemory from, cuda::DeviceMemory::Allocate(device, bytes));
  WEFT_ASSIGN_OR_RETURN(cuda::DeviceMemory to, cuda::DeviceMemory::Allocate(device, bytes));
  WEFT_RETURN_IF_ERROR(Check("cudaMemset", cudaMemset(from.data(), 0x5a, bytes)));
  const auto copy = [&] {
    return Check("cudaMemcpyAsync",
                 cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice,
                                 state_->stream->handle()));
  };
  return Seconds(copy, repeats);
}

}  // namespace weft::kernels::testing
