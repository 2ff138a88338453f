#include "common/spec/check_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace weft {
namespace {

using ::testing::HasSubstr;

WorkerProfile Sound() {
  WorkerProfile profile;
  profile.worker_id = "a";
  profile.cores = 64;
  profile.memory_bytes = int64_t{1} << 40;
  profile.gemm.push_back({"bf16", 512, 512, 512, 1, 1e12});
  DeviceSpec gpu;
  gpu.gemm.push_back({"fp8", 8192, 8192, 8192, 1, 2e15});
  gpu.links.push_back({1, "nvlink", true, 4e11});
  profile.devices.push_back(gpu);
  return profile;
}

TEST(CheckProfile, TakesWhatMachinesMeasure) {
  EXPECT_TRUE(CheckProfile(Sound()).ok()) << CheckProfile(Sound()).message();
  EXPECT_TRUE(CheckProfile(WorkerProfile()).ok()) << "what is not known is 0";
}

TEST(CheckProfile, NamesWhatNoMachineHas) {
  const double infinite = std::numeric_limits<double>::infinity();
  struct Case {
    std::function<void(WorkerProfile&)> change;
    std::string field;
  };
  for (const auto& [change, field] : std::vector<Case>{
           {[](auto& p) { p.cores = 0; }, "cores is 0"},
           {[](auto& p) { p.cores = -5; }, "cores is -5"},
           {[](auto& p) { p.cores = 1'000'000'000'000'000; }, "cores"},
           {[](auto& p) { p.memory_bytes = -1; }, "memory_bytes is -1"},
           {[](auto& p) { p.memory_limit_bytes = INT64_MAX; }, "memory_limit_bytes"},
           {[](auto& p) { p.gemm[0].flops_per_second = NAN; }, "gemm[0].flops_per_second"},
           {[&](auto& p) { p.copy_bytes_per_second = infinite; }, "copy_bytes_per_second is inf"},
           {[](auto& p) { p.loopback_bytes_per_second = -1; }, "loopback_bytes_per_second"},
           {[](auto& p) { p.devices[0].gemm[0].flops_per_second = -1; },
            "devices[0].gemm[0].flops_per_second"},
           {[](auto& p) { p.devices[0].links[0].bytes_per_second = NAN; },
            "devices[0].links[0].bytes_per_second"},
           {[](auto& p) { p.devices[0].memory_bytes = -7; }, "devices[0].memory_bytes"},
           {[](auto& p) { p.gemm.resize(100000); }, "gemm is 100000 entries"},
           {[](auto& p) { p.devices.resize(5000); }, "devices is 5000 entries"},
           {[](auto& p) { p.cpu_model = std::string(5000, 'x'); }, "cpu_model"}}) {
    WorkerProfile profile = Sound();
    change(profile);
    const Status status = CheckProfile(profile);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << field;
    EXPECT_THAT(status.message(), HasSubstr(field));
  }
}

}  // namespace
}  // namespace weft
