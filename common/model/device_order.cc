#include "common/model/device_order.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace weft {
namespace {

/// From near to far, as in DeviceLink::path.
constexpr std::array<std::string_view, 6> kPaths = {"nvlink", "switch", "switches",
                                                    "bridge", "node",   "system"};

int64_t Distance(const DeviceSpec& from, const DeviceSpec& to) {
  for (const DeviceLink& link : from.links) {
    if (link.index == to.index) {
      return std::find(kPaths.begin(), kPaths.end(), link.path) - kPaths.begin();
    }
  }
  return std::ssize(kPaths);
}

bool Usable(const DeviceSpec& device, int64_t bytes) {
  return device.unusable.empty() && device.memory_limit_bytes >= bytes;
}

struct Chain {
  std::vector<const DeviceSpec*> devices;
  int64_t length = 0;  ///< Sum of the distances of all pairs.
};

Chain BuildChain(const DeviceSpec* start, std::vector<const DeviceSpec*> left, size_t count) {
  Chain chain{{start}, 0};
  std::erase(left, start);
  while (chain.devices.size() < count) {
    const auto to_all = [&](const DeviceSpec* device) {
      int64_t sum = 0;
      for (const DeviceSpec* taken : chain.devices) sum += Distance(*taken, *device);
      return sum;
    };
    auto nearest = std::min_element(left.begin(), left.end(), [&](const auto* a, const auto* b) {
      return to_all(a) < to_all(b);
    });
    chain.length += to_all(*nearest);
    chain.devices.push_back(*nearest);
    left.erase(nearest);
  }
  return chain;
}

}  // namespace

int64_t UsableDevices(const std::vector<DeviceSpec>& devices, int64_t bytes) {
  return std::count_if(devices.begin(), devices.end(),
                       [&](const DeviceSpec& device) { return Usable(device, bytes); });
}

std::vector<int64_t> NearestDevices(const std::vector<DeviceSpec>& devices, int64_t count,
                                    int64_t bytes) {
  std::vector<const DeviceSpec*> usable;
  for (const DeviceSpec& device : devices) {
    if (Usable(device, bytes)) usable.push_back(&device);
  }
  const auto wanted = static_cast<size_t>(std::clamp<int64_t>(count, 0, std::ssize(usable)));
  Chain best;
  for (const DeviceSpec* start : usable) {
    if (wanted == 0) break;
    Chain chain = BuildChain(start, usable, wanted);
    if (best.devices.empty() || chain.length < best.length) best = std::move(chain);
  }
  std::vector<int64_t> indices;
  for (const DeviceSpec* device : best.devices) indices.push_back(device->index);
  return indices;
}

}  // namespace weft
