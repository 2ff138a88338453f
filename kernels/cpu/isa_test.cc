#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace weft::kernels::cpu {
namespace {

TEST(Isa, AgreesWithWhatTheKernelLists) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, flags;
  while (flags.empty() && std::getline(cpuinfo, line)) {
    if (line.starts_with("flags")) flags = line + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  auto has = [&flags](const std::string& flag) {
    return flags.find(" " + flag + " ") != std::string::npos;
  };
  EXPECT_EQ(DetectedIsa() >= Isa::kAvx2, has("avx2") && has("fma"));
  EXPECT_EQ(DetectedIsa() >= Isa::kAvx512,
            has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq"));
  EXPECT_EQ(DetectedIsa() >= Isa::kAvx512Bf16, has("avx512_bf16"));
}

TEST(Isa, ScopedChangeEndsWithItsScope) {
  Isa before = ActiveIsa();
  {
    ScopedIsa use_isa(Isa::kBaseline);
    EXPECT_EQ(ActiveIsa(), Isa::kBaseline);
  }
  EXPECT_EQ(ActiveIsa(), before);
}

TEST(Isa, EnvironmentLowersTheSet) {
  const char* wanted = std::getenv("WEFT_ISA");
  if (wanted == nullptr) GTEST_SKIP() << "WEFT_ISA is not set";
  EXPECT_EQ(IsaName(ActiveIsa()), wanted);
}

}  // namespace
}  // namespace weft::kernels::cpu
