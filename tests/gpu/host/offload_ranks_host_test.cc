// What ranks with state in host tiers may not do with their devices, which only the host execution
// can tell.

#include <gtest/gtest.h>

#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"

namespace weft::engine {
namespace {

// All tests of this program: work is done when it is waited for, and no sooner.
class Devices : public ::testing::Environment {
  void SetUp() override {
    host_cuda::SetDeviceCount(4);
    host_cuda::DeferWork(true);
  }
  void TearDown() override { EXPECT_EQ(OpenFakeComms(), 0); }
};
const auto* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

}  // namespace
}  // namespace weft::engine
