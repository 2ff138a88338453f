#include "common/model/transfer_waits.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

using Strings = std::vector<std::string>;

RematPlan Parsed(const Strings& operations, int64_t layers) {
  auto plan = ParseRemat(operations, layers);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

TEST(TransferWaitsTest, StepsHaveTheTimesOfTheirBlocksAndReplays) {
  const RematPlan plan = Parsed({"F_ck 0", "F_none 1", "F_attention 2", "F_all 3", "B 3", "B 2",
                                 "F_ck 0", "F_attention 1", "B 1", "F_all 0", "B 0"},
                                4);
  const std::vector<StepLoad> loads = LoadsOf(plan, {.forward = 4, .attention = 1, .backward = 8});
  ASSERT_EQ(loads.size(), 3u);
  EXPECT_EQ(loads[0].forward, 8);
  // F_ck 0, F_attention 1, B 1 with its attention, F_all 0, B 0.
  EXPECT_EQ(loads[0].backward, 4 + 4 + 9 + 4 + 8);
  EXPECT_EQ(loads[1].backward, 9);
  EXPECT_EQ(loads[2].backward, 8);
}

// By hand, with blocks of 2 and 4 seconds.
TEST(TransferWaitsTest, DirectionsCarryOneStepAfterTheOther) {
  const auto waits = [](const Strings& operations, int64_t bytes) {
    const RematPlan plan = Parsed(operations, 4);
    std::vector<StepLoad> loads = LoadsOf(plan, {.forward = 2, .backward = 4});
    for (StepLoad& load : loads) load.bytes = bytes;
    return TransferWaits(plan, loads, 0.5);
  };
  const Strings near = {"F_all_host 0", "F_all_host 1", "sent 0", "F_all 2", "sent 1", "F_all 3",
                        "B 3",          "fetch 1",      "B 2",    "fetch 0", "B 1",    "B 0"};
  EXPECT_EQ(waits(near, 4), 0) << "2 seconds each way";
  EXPECT_EQ(waits(near, 6), 1 + 1) << "down, each during 2 seconds of the next";
  EXPECT_EQ(waits(near, 12), 4 + 4 + 2 + 2);
  // Both leave during what follows: 6 seconds of link from the end of block 0, 4 of computing.
  const Strings late = {"F_all_host 0", "F_all_host 1", "F_all 2", "F_all 3", "sent 0", "sent 1",
                        "fetch 1",      "fetch 0",      "B 3",     "B 2",     "B 1",    "B 0"};
  EXPECT_EQ(waits(late, 6), 0);
  // Down until 12; 6 of these overlap with blocks; block 1 is back 6 seconds after the end and
  // block 0 12 seconds, while 2 of 4 seconds are computed and a third.
  EXPECT_EQ(waits(late, 12), 6);
}

}  // namespace
}  // namespace weft
