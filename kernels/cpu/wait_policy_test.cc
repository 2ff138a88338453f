#include "kernels/cpu/wait_policy.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace weft::kernels::cpu {
namespace {

// What the program was started with, which is what libgomp has read.
std::string StartEnvironment() {
  std::ifstream file("/proc/self/environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Called in a child process, which starts anew once and then comes here again.
[[noreturn]] void StartAnew(const char* name, const char* value) {
  constexpr char kOnce[] = "WEFT_TEST_STARTED_ANEW";
  if (std::getenv(kOnce) == nullptr) {
    setenv(kOnce, "yes", 1);
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    if (name != nullptr) setenv(name, value, 1);
    BoundSpinning();
    std::exit(2);  // it was not
  }
  BoundSpinning();  // has nothing to do any more
  const std::string wanted = std::string("GOMP_SPINCOUNT=") + kSpinCount;
  std::exit(StartEnvironment().find(wanted) == std::string::npos ? 3 : 0);
}

TEST(WaitPolicyDeathTest, TheProgramStartsAnewWithFewSpins) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartAnew(nullptr, nullptr), ::testing::ExitedWithCode(0), "");
}

TEST(WaitPolicyDeathTest, WhatTheUserSaysStays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartAnew("OMP_WAIT_POLICY", "active"), ::testing::ExitedWithCode(2), "");
  EXPECT_EXIT(StartAnew("GOMP_SPINCOUNT", "7"), ::testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace weft::kernels::cpu
