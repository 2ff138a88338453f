#include "kernels/cuda/device.h"

namespace weft::kernels::cuda {
namespace {

Status NoCuda() {
  return UnavailableError("this build has no CUDA back end; hint: cmake --preset cuda");
}

}  // namespace

int DeviceCount() {
  return 0;
}

DeviceMemory::~DeviceMemory() {}
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;

Result<DeviceMemory> DeviceMemory::Allocate(int, size_t) {
  return NoCuda();
}
Status DeviceMemory::CopyFrom(const void*, size_t, size_t) {
  return NoCuda();
}
Status DeviceMemory::CopyTo(void*, size_t) const {
  return NoCuda();
}

Result<std::unique_ptr<StreamState>> StreamState::Create(int, StreamOptions) {
  return NoCuda();
}
StreamState::~StreamState() = default;
Result<void*> StreamState::Scratch(std::string_view, size_t) {
  return NoCuda();
}
Status StreamState::Synchronize() {
  return NoCuda();
}

}  // namespace weft::kernels::cuda
