// What a worker measures of a GPU, on the device that the host execution has: that all products
// are asked for in a way the library accepts. The work is skipped, so that rates say nothing.

#include "worker/daemon/device_rates.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/host/streams.h"

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

}  // namespace
}  // namespace weft::daemon
