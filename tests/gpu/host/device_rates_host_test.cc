// What a worker measures of a GPU, on the device that the host execution has: that all products
// are asked for in a way the library accepts. The work is skipped, so that rates say nothing. And
// how it checks one, which is done.

#include "worker/daemon/device_rates.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "tests/gpu/host/streams.h"
#include "worker/daemon/machine_check.h"

namespace weft::daemon {
namespace {

TEST(MeasureProducts, CoversEveryPrecisionByShape) {
  host_cuda::SkipWork(true);
  const Result<std::vector<GemmRate>> rates = MeasureProducts(0);
  host_cuda::SkipWork(false);
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  std::map<std::string, int> shapes;
  for (const GemmRate& rate : *rates) {
    EXPECT_GT(rate.flops_per_second, 0);
    ++shapes[rate.precision];
  }
  // It takes itself for a Hopper, which multiplies FP8.
  EXPECT_EQ(shapes, (std::map<std::string, int>{{"bf16", 6},
                                                {"fp16", 6},
                                                {"fp32", 6},
                                                {"fp8", 6},
                                                {"sparse24_forward_bf16", 2},
                                                {"sparse24_input_gradient_bf16", 2},
                                                {"sparse24_weight_gradient_bf16", 2}}));
}

TEST(CheckDevice, FindsAFlippedBitOfAProduct) {
  constexpr int64_t kSide = 64;
  MachineCheck check;
  Result<double> rate = CheckDevice(0, kSide, check);
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_GT(*rate, 0);
  EXPECT_EQ(check.error, "");
  EXPECT_EQ(check.device, -1);
  ASSERT_TRUE(SetFailpoints("worker.check.device=error").ok());
  rate = CheckDevice(0, kSide, check);
  ASSERT_TRUE(SetFailpoints("").ok());
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_THAT(check.error, ::testing::HasSubstr("multiplied wrongly: row 32"));
  EXPECT_EQ(check.device, 0);
}

}  // namespace
}  // namespace weft::daemon
