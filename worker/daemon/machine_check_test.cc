#include "worker/daemon/machine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/failpoint.h"

namespace weft::daemon {
namespace {

using ::testing::HasSubstr;

class MachineCheckTest : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }
};

TEST_F(MachineCheckTest, FindsEachWrongNumberOfAProduct) {
  constexpr int64_t kM = 3, kN = 9, kK = 4;
  std::vector<float> x, w, y(kM * kN);
  for (int i = 0; i < kM * kK; ++i) x.push_back(static_cast<float>(i % 7 - 3));
  for (int i = 0; i < kN * kK; ++i) w.push_back(static_cast<float>(i % 5 - 2));
  for (int64_t row = 0; row < kM; ++row) {
    for (int64_t column = 0; column < kN; ++column) {
      for (int64_t i = 0; i < kK; ++i) y[row * kN + column] += x[row * kK + i] * w[column * kK + i];
    }
  }
  EXPECT_EQ(WrongRow(x.data(), w.data(), y.data(), kM, kN, kK), -1);
  for (int64_t at = 0; at < kM * kN; ++at) {
    for (float wrong : {y[at] + 1, y[at] - 0.5f, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> changed = y;
      changed[at] = wrong;
      EXPECT_EQ(WrongRow(x.data(), w.data(), changed.data(), kM, kN, kK), at / kN) << at;
    }
  }
}

TEST_F(MachineCheckTest, ASoundMachinePassesAndIsMeasured) {
  const Result<MachineCheck> check = CheckMachine(2);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_EQ(check->error, "");
  EXPECT_EQ(check->device, -1);
  EXPECT_GT(check->flops_per_second, 1e8);
  EXPECT_GT(check->memory_bytes_per_second, 1e7);
}

TEST_F(MachineCheckTest, AFlippedBitIsFound) {
  ASSERT_TRUE(SetFailpoints("worker.check.product=error@3").ok());
  Result<MachineCheck> check = CheckMachine(2);
  ASSERT_TRUE(check.ok());
  EXPECT_THAT(check->error, HasSubstr("multiplied wrongly: row 256"));
  ASSERT_TRUE(SetFailpoints("worker.check.memory=error@2").ok());
  check = CheckMachine(2);
  ASSERT_TRUE(check.ok());
  EXPECT_THAT(check->error, HasSubstr("memory lost what was written to it"));
}

}  // namespace
}  // namespace weft::daemon
