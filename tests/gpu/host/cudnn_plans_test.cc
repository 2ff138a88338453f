// Whether the real cuDNN, where it is, takes our graphs of attention: it builds plans, and compiles
// their kernels, for devices that are described to it. Nothing is computed.

#include <dlfcn.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "kernels/attention/attention_cudnn_graph.h"
#include "kernels/cuda/cudnn_graph.h"

namespace weft::kernels::cuda {
namespace {

using ::testing::HasSubstr;

class CudnnPlans : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Before anything asks for the driver by its name.
    ASSERT_NE(dlopen(WEFT_NO_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  void SetUp() override {
    const auto found = LoadCudnn();
    if (!found.ok()) GTEST_SKIP() << found.status().ToString();
    library_ = *found;
    if (library_->get_version() < 91600) GTEST_SKIP() << "cuDNN before 9.16";
  }

  // What the plan for such a device is refused for; empty when there is one.
  std::string Refusal(int capability, const CudnnAttentionShape& shape, bool backward) {
    EXPECT_TRUE(CheckCudnnTakes(shape, backward, library_->get_version()).ok());
    CudnnDescriptors properties(*library_);
    const auto device = properties.New(CudnnLibrary::kDevicePropertiesDescriptor);
    EXPECT_TRUE(device.ok());
    const bool hopper = capability == 90;
    const std::string text = Json{
        {"deviceName", hopper ? "NVIDIA H100" : "NVIDIA A100"},
        {"deviceVer", capability * 10},
        {"driverVer", 13000},
        {"cudaDeviceId", 0},
        {"pciDeviceId", 0},
        {"multiProcessorCount", hopper ? 132 : 108},
        {"smCountOrigin", 0},
        {"warpSize", 32},
        {"maxGridSize", {2147483647, 65535, 65535}},
        {"maxBlockSize", {1024, 1024, 64}},
        {"maxThreadsPerBlock", 1024},
        {"maxThreadsPerSM", 2048},
        {"maxCtasPerSM", 32},
        {"regsPerBlock", 65536},
        {"maxRegistersPerSM", 65536},
        {"maxSharedMemoryPerBlock", 49152},
        {"maxSharedMemoryPerBlockOptin", hopper ? 232448 : 166912},
        {"reservedSharedMemoryPerBlock", 1024},
        {"oversizedSharedMemoryPerBlock", 0},
        {"isTccDriver", 0},
        {"supportCoopLaunch", 1},
        {"totalGlobalMem", 85000000000},
        {"smClockRateKHz", 1980000},
        {"memClockRateKHz", 2619000},
        {"l2CacheSize",
         52428800}}.dump();
    EXPECT_EQ(library_->set_attribute(*device, CudnnLibrary::kDeviceJson, CudnnLibrary::kCharType,
                                      static_cast<int64_t>(text.size()), text.data()),
              0);
    EXPECT_EQ(library_->finalize(*device), 0);
    CudnnGraph graph(*library_);
    if (backward) {
      DescribeAttentionBackward(graph, shape);
    } else {
      DescribeAttentionForward(graph, shape);
    }
    const auto plan = graph.CompileFor(*device);
    return plan.ok() ? "" : plan.status().message();
  }

  const CudnnLibrary* library_ = nullptr;
};

// Grouped queries whose rows are slices of one matrix.
CudnnAttentionShape GroupedShape(int64_t head_dim) {
  CudnnAttentionShape shape = {.dtype = DType::kBF16,
                               .sequences = 3,
                               .length = 200,
                               .heads = 6,
                               .kv_heads = 2,
                               .head_dim = head_dim};
  shape.q_stride = shape.k_stride = shape.v_stride = 10 * head_dim;
  shape.dq_stride = shape.dk_stride = shape.dv_stride = 10 * head_dim;
  shape.out_stride = shape.dout_stride = 6 * head_dim;
  return shape;
}

TEST_F(CudnnPlans, AreMadeForHopper) {
  const CudnnAttentionShape shape = GroupedShape(64);
  EXPECT_EQ(Refusal(90, shape, false), "");
  EXPECT_EQ(Refusal(90, shape, true), "");
}

TEST_F(CudnnPlans, AreMadeForAmpereWithAWindow) {
  CudnnAttentionShape shape = GroupedShape(72);
  shape.dtype = DType::kF16;
  shape.window = 60;
  EXPECT_EQ(Refusal(80, shape, false), "");
  shape.kv_heads = shape.heads;
  shape.q_stride = shape.k_stride = shape.v_stride = 3 * 6 * 72;
  EXPECT_EQ(Refusal(80, shape, true), "");
}

TEST_F(CudnnPlans, AreRefusedWithAReason) {
  EXPECT_THAT(Refusal(80, GroupedShape(256), true), HasSubstr("no engine for this graph"));
}

}  // namespace
}  // namespace weft::kernels::cuda
