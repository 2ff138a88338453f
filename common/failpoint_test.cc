#include "common/failpoint.h"

#include <chrono>

#include <gtest/gtest.h>

namespace weft {
namespace {

class FailpointTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(SetFailpoints("").ok()); }
};

TEST_F(FailpointTest, NothingFailsUntilNamed) {
  EXPECT_TRUE(Failpoint("save").ok());
  ASSERT_TRUE(SetFailpoints("save=error").ok());
  EXPECT_EQ(Failpoint("save").code(), StatusCode::kInternal);
  EXPECT_TRUE(Failpoint("load").ok());
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_TRUE(Failpoint("save").ok());
}

TEST_F(FailpointTest, FailsOnlyTheNthTime) {
  ASSERT_TRUE(SetFailpoints("save=full@3,load=error").ok());
  EXPECT_TRUE(Failpoint("save").ok());
  EXPECT_TRUE(Failpoint("save").ok());
  EXPECT_EQ(Failpoint("save").code(), StatusCode::kExhausted);
  EXPECT_TRUE(Failpoint("save").ok());
  EXPECT_EQ(Failpoint("load").code(), StatusCode::kInternal);
}

TEST_F(FailpointTest, SleepDelaysTheCall) {
  ASSERT_TRUE(SetFailpoints("save=sleep:20").ok());
  auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Failpoint("save").ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
}

TEST_F(FailpointTest, RefusesWhatItCannotReadAndKeepsWhatItHad) {
  ASSERT_TRUE(SetFailpoints("save=error").ok());
  for (const char* bad :
       {"save", "=error", "save=explode", "save=error@", "save=error@x", "save=error@0",
        "save=sleep:", "save=spin:", "save=sleep:-5", "save=sleep:1s"}) {
    EXPECT_EQ(SetFailpoints(bad).code(), StatusCode::kInvalid) << bad;
  }
  EXPECT_FALSE(Failpoint("save").ok());
}

TEST(FailpointDeathTest, CrashKillsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        (void)SetFailpoints("save=crash");
        (void)Failpoint("save");
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace weft
