#include "common/model/remat_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;
using Kind = RematStep::Kind;
using Strings = std::vector<std::string>;

TEST(RematScheduleTest, PoliciesFormSegmentsOfNeighboursThatAreRecomputed) {
  const RematPlan plan = RematOfPolicies(
      {"recompute", "recompute", "recompute", "attention", "recompute", "keep"}, 7, 2);
  ASSERT_EQ(plan.size(), 6u);
  EXPECT_EQ(plan[0].kind, Kind::kSegment);
  EXPECT_EQ(plan[0].count, 2);
  EXPECT_EQ(plan[0].replay.size(), 2u);
  EXPECT_EQ(plan[1].count, 1);
  EXPECT_EQ(plan[2].kind, Kind::kAttention);
  EXPECT_EQ(plan[3].kind, Kind::kSegment);
  EXPECT_EQ(plan[5].kind, Kind::kKeep) << "past the end of the list";
  EXPECT_EQ(ReplayedBlocks(plan), 4);
  EXPECT_EQ(ReplayedAttentions(plan), 1);
}

TEST(RematScheduleTest, OperationsStandInTheOrderInWhichTheyAreDone) {
  const Strings operations = {
      "F_ck 0",        "F_none 1", "F_none 2", "F_all 3", "B 3", "F_ck 0", "F_none 1",
      "F_attention 2", "B 2",      "F_all 0",  "F_all 1", "B 1", "B 0"};
  auto plan = ParseRemat(operations, 4);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(RematOperations(*plan), operations);
  EXPECT_EQ(ReplayedBlocks(*plan), 3 + 2);
  EXPECT_EQ(ReplayedAttentions(*plan), 1);
  for (int64_t segment : {1, 2, 5}) {
    const RematPlan made = RematOfPolicies(Strings(5, "recompute"), 5, segment);
    auto read = ParseRemat(RematOperations(made), 5);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(*read, made);
  }
}

TEST(RematScheduleTest, WhatIsNoScheduleIsRefusedByNameOfTheOperation) {
  const struct {
    Strings operations;
    const char* message;
  } cases[] = {
      {{"F_all 0"}, "operation 1 is missing, expected F_all, F_attention or F_ck of block 1"},
      {{"F_all 1", "F_all 0"}, "operation 0 is \"F_all 1\""},
      {{"F_all 0", "F_all 1", "B 0", "B 1"}, "expected B of block 1"},
      {{"F_all 0", "F_none 1", "B 0"}, "operation 1 is \"F_none 1\""},
      {{"F_all 0", "F_all 1", "B 1", "B 0", "B 0"}, "expected no more"},
      {{"F_all 0", "F_ck 1", "B 0"}, "expected F_all, F_attention or F_ck of block 1"},
      {{"F_ck 0", "F_none 1", "F_ck 0", "F_none 1", "F_all 0", "F_all 1", "B 1", "B 0"},
       "repeats itself"},
      {{"F_all 0 ", "F_all 1", "B 1", "B 0"}, "operation 0"},
  };
  for (const auto& [operations, message] : cases) {
    const auto plan = ParseRemat(operations, 2);
    ASSERT_FALSE(plan.ok()) << operations.front();
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(plan.status().message(), HasSubstr(message));
  }
  EXPECT_FALSE(ParseRemat({"F_all 0", "B 0"}, 2).ok());
}

}  // namespace
}  // namespace weft
