#include <utility>

#include "kernels/testing/device_timer.h"

namespace weft::kernels::testing {
namespace {

Status NoCuda() {
  return UnavailableError("timing a CUDA device: not in this build; hint: cmake --preset cuda");
}

}  // namespace

struct DeviceTimer::State {
  DeviceDescription description;
};

DeviceTimer::DeviceTimer(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceTimer::~DeviceTimer() = default;

const DeviceDescription& DeviceTimer::description() const {
  return state_->description;
}

Result<std::unique_ptr<DeviceTimer>> DeviceTimer::Create(cuda::StreamState&) {
  return NoCuda();
}

Result<std::vector<double>> DeviceTimer::Seconds(const std::function<Status()>&, int) {
  return NoCuda();
}

Result<std::vector<double>> DeviceTimer::CopySeconds(size_t, int) {
  return NoCuda();
}

}  // namespace weft::kernels::testing
