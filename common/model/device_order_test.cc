#include "common/model/device_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// GPUs of 10 bytes each whose links `path` names.
std::vector<DeviceSpec> Machine(int count, const std::function<std::string(int, int)>& path) {
  std::vector<DeviceSpec> devices;
  for (int i = 0; i < count; ++i) {
    DeviceSpec device;
    device.index = i;
    device.memory_limit_bytes = 10;
    for (int j = 0; j < count; ++j) {
      if (j != i) device.links.push_back({j, path(i, j)});
    }
    devices.push_back(device);
  }
  return devices;
}

TEST(NearestDevices, NeighboursShareAnIsland) {
  // Even and odd GPUs are two islands of NVLink; 0 and 1, 2 and 3, ... share a socket.
  auto devices = Machine(8, [](int a, int b) {
    return a % 2 == b % 2 ? "nvlink" : a / 2 == b / 2 ? "node" : "system";
  });
  EXPECT_THAT(NearestDevices(devices, 4), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(NearestDevices(devices, 2), ElementsAre(0, 2));
  devices[2].unusable = "lost";
  EXPECT_THAT(NearestDevices(devices, 4), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(NearestDevices(devices, 5), ElementsAre(1, 3, 5, 7, 0));
  EXPECT_EQ(NearestDevices(devices, 99).size(), 7u);
  EXPECT_EQ(UsableDevices(devices), 7);
}

TEST(NearestDevices, StayOnOneSwitchOrSocket) {
  // Pairs behind a switch, sockets of four.
  auto devices = Machine(8, [](int a, int b) {
    return a / 2 == b / 2 ? "switch" : a / 4 == b / 4 ? "bridge" : "system";
  });
  devices[1].unusable = "taken";
  EXPECT_THAT(NearestDevices(devices, 2), ElementsAre(2, 3));
  EXPECT_THAT(NearestDevices(devices, 4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(NearestDevices(devices, 3), ElementsAre(0, 2, 3));
}

TEST(NearestDevices, TakeOnlyThoseWithTheMemory) {
  auto devices = Machine(3, [](int, int) { return "system"; });
  devices[1].memory_limit_bytes = 30;
  EXPECT_THAT(NearestDevices(devices, 3, 20), ElementsAre(1));
  EXPECT_EQ(UsableDevices(devices, 10), 3);
  EXPECT_THAT(NearestDevices(devices, 2, 31), IsEmpty());
  EXPECT_THAT(NearestDevices(devices, 0), IsEmpty());
  EXPECT_THAT(NearestDevices({}, 2), IsEmpty());
}

}  // namespace
}  // namespace weft
