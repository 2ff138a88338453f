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

TEST(RematScheduleTest, OperationsAreInTheOrderInWhichTheyAreDone) {
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

TEST(RematScheduleTest, WhatIsOffloadedLeavesAndComesWhereTheListSays) {
  const Strings operations = {
      "F_all_host 0", "F_ck_host 1", "F_none 2", "sent 0",  "F_attention_host 3",
      "F_all 4",      "sent 1",      "sent 3",   "fetch 3", "B 4",
      "B 3",          "fetch 1",     "F_all 1",  "F_all 2", "B 2",
      "B 1",          "B 0"};
  EXPECT_FALSE(ParseRemat(operations, 5).ok()) << "block 1 is fetched too late";
  const Strings right = {"F_all_host 0", "F_ck_host 1", "F_none 2", "sent 0",  "F_attention_host 3",
                         "F_all 4",      "sent 1",      "sent 3",   "fetch 3", "fetch 1",
                         "B 4",          "B 3",         "fetch 0",  "F_all 1", "F_all 2",
                         "B 2",          "B 1",         "B 0"};
  auto plan = ParseRemat(right, 5);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(RematOperations(*plan), right);
  ASSERT_EQ(plan->size(), 4u);
  const auto expect = [&](size_t step, int64_t sent, int64_t fetched) {
    EXPECT_EQ((*plan)[step].sent, sent) << step;
    EXPECT_EQ((*plan)[step].fetched, fetched) << step;
  };
  expect(0, 1, 1);
  expect(1, 3, 3);
  expect(2, 3, 3);
  expect(3, -1, -1);
  EXPECT_TRUE(Transfers(*plan));
  EXPECT_EQ(SentBlocks(*plan), 4);
  const RematPlan all = AllOnHost(RematOfPolicies({"recompute", "keep", "attention"}, 4, 1));
  EXPECT_EQ(SentBlocks(all), 3);
  auto read = ParseRemat(RematOperations(all), 4);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, all);
}

TEST(RematScheduleTest, APlanSaysWhatIsOffloaded) {
  Plan plan;
  EXPECT_FALSE(Transfers(*RematOf(plan, 3)));
  plan.offload_activations = "host";
  EXPECT_EQ(*RematOf(plan, 3), AllOnHost(RematOfPolicies({}, 3, 1)));
  plan.recompute_schedule = {"F_all 0", "F_all 1", "B 1", "B 0"};
  EXPECT_FALSE(Transfers(*RematOf(plan, 2))) << "the list does not say so";
  plan.recompute_schedule = {"F_all_host 0", "F_all 1", "sent 0", "fetch 0", "B 1", "B 0"};
  EXPECT_TRUE(Transfers(*RematOf(plan, 2)));
  plan.offload_activations = "none";
  EXPECT_THAT(RematOf(plan, 2).status().message(), HasSubstr("plan.offload_activations is none"));
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
      {{"F_all_host 0", "F_all 1", "fetch 0", "B 1", "B 0"},
       "operation 2 is \"fetch 0\", expected sent 0 before the backward pass"},
      {{"F_all_host 0", "sent 0", "F_all 1", "fetch 0", "B 1", "B 0"},
       "operation 1 is \"sent 0\", expected F_all"},
      {{"F_all_host 0", "F_all 1", "sent 0", "B 1", "B 0"},
       "operation 4 is \"B 0\", expected fetch 0 with the backward pass"},
      {{"F_all_host 0", "F_all 1", "sent 0", "B 1", "fetch 0", "B 0"}, "expected fetch 0"},
      {{"F_all_host 0", "F_all 1", "sent 0", "fetch 0", "fetch 0", "B 1", "B 0"},
       "operation 4 is \"fetch 0\", expected B of block 1"},
      {{"F_all_host 0", "F_all 1", "sent 0", "sent 0", "fetch 0", "B 1", "B 0"},
       "operation 3 is \"sent 0\""},
      {{"F_all 0", "F_all 1", "sent 0", "fetch 0", "B 1", "B 0"}, "operation 2 is \"sent 0\""},
      {{"F_all 0", "F_all_host 1", "sent 1", "B 1", "B 0"},
       "what block 1 keeps is read first in the backward pass, and cannot be sent"},
      {{"F_ck 0", "F_all 1", "B 1", "F_all_host 0", "B 0"}, "operation 3 is \"F_all_host 0\""},
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
