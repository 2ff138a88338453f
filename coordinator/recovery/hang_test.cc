#include "coordinator/recovery/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlacementActivity Placement(const std::string& activity, double silent_seconds,
                            double longest_step = 0) {
  return {"w", activity, silent_seconds, longest_step, "rank 0 sleeping", 0, 0};
}

bool Hangs(const std::vector<PlacementActivity>& placements, double predicted = 0,
           const HangRules& rules = {}) {
  return FindHang(placements, {.step_seconds = predicted}, {}, rules).has_value();
}

TEST(Hang, OfQuickStepsIsCalledAfterTheLeastTime) {
  EXPECT_FALSE(Hangs({Placement("training", 20, 1)}));
  EXPECT_TRUE(Hangs({Placement("training", 20.1, 1)}));
  EXPECT_FALSE(Hangs({Placement("training", 20, 4)})) << "five of these take as long";
  EXPECT_TRUE(Hangs({Placement("training", 20.1, 4)}));
}

TEST(Hang, OfSlowStepsIsCalledAfterFiveOfTheLongestKnown) {
  EXPECT_FALSE(Hangs({Placement("training", 299, 60)}));
  EXPECT_TRUE(Hangs({Placement("training", 301, 60)}));
  EXPECT_FALSE(Hangs({Placement("training", 499, 1)}, /*predicted=*/100));
  EXPECT_TRUE(Hangs({Placement("training", 501, 1)}, /*predicted=*/100));
  EXPECT_FALSE(Hangs({Placement("training", 499, 1), Placement("training", 499, 100)}))
      << "of any placement";
}

TEST(Hang, WhatNothingIsExpectedOfMaySeemIdleForLonger) {
  for (const char* activity : {"starting", "evaluating", "saving", "loading", "exchanging"}) {
    EXPECT_FALSE(Hangs({Placement(activity, 299, 0.5)})) << activity;
    EXPECT_TRUE(Hangs({Placement(activity, 301, 0.5)})) << activity;
    EXPECT_FALSE(Hangs({Placement(activity, 499, 100)})) << activity;
  }
}

TEST(Hang, OfAFirstStepWithoutAForecastIsCalledLater) {
  EXPECT_FALSE(Hangs({Placement("training", 299)})) << "after the validation of grown weights";
  EXPECT_TRUE(Hangs({Placement("training", 301)}));
  EXPECT_FALSE(Hangs({Placement("training", 499)}, /*predicted=*/100));
}

TEST(Hang, IsCalledLaterWhereARankWaitsForADisk) {
  const auto hangs = [](double silent_seconds) {
    return Hangs({{"a", "training", silent_seconds, 0.5, "rank 0 sleeping, rank 1 sleeping", 0, 0},
                  {"b", "training", silent_seconds, 0.5, "rank 2 waiting for a disk", 0, 0}});
  };
  EXPECT_FALSE(hangs(299));
  EXPECT_TRUE(hangs(301));
}

TEST(Hang, LimitsAreGivenAsANumberOrFollowFromTheSteps) {
  const auto rules = [](const std::string& text) { return *HangRulesOf(text); };
  EXPECT_EQ(rules("auto").step_seconds, 20);
  EXPECT_EQ(rules("auto").other_least_seconds, 20);
  EXPECT_EQ(rules("auto").other_seconds, 300);
  EXPECT_EQ(rules("2.5").step_seconds, 2.5);
  EXPECT_EQ(rules("2.5").other_least_seconds, 3) << "signs of life are looked for each second";
  EXPECT_EQ(rules("7").other_least_seconds, 7);
  EXPECT_EQ(rules("2.5").other_seconds, 12.5);
  EXPECT_EQ(rules("2.5").step_factor, rules("auto").step_factor);
  EXPECT_FALSE(Hangs({Placement("training", 1e9, 0.5)}, 0, rules("0"))) << "switched off";
  EXPECT_FALSE(Hangs({Placement("training", 299, 60)}, 0, rules("5"))) << "steps take as long";
  for (const char* text : {"", "automatic", "AUTO", "-1", "1000001", "nan", "inf", "5s", " 5"}) {
    const Result<HangRules> found = HangRulesOf(text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_THAT(found.status().message(), HasSubstr("neither auto nor seconds")) << text;
  }
}

TEST(Hang, OneShareThatShowsLifeIsEnough) {
  EXPECT_FALSE(Hangs({Placement("training", 500, 0.5), Placement("training", 1, 0.5)}));
  EXPECT_FALSE(Hangs({Placement("training", 100, 0.5), Placement("saving", 100, 0.5)}));
  EXPECT_TRUE(Hangs({Placement("training", 500, 0.5), Placement("training", 25, 0.5)}));
}

TEST(Hang, IsNotConcludedFromWhatIsNotKnown) {
  EXPECT_FALSE(Hangs({}));
  EXPECT_FALSE(Hangs({Placement("training", 500, 0.5), Placement("", 0)}));
  EXPECT_FALSE(Hangs({Placement("training", std::nan(""), 0.5)}));
}

TEST(OddRank, IsTheOneThatDoesNotWaitAsTheOthersDo) {
  const auto odd = [](const std::vector<std::string>& states) {
    std::vector<PlacementActivity> placements;
    for (const std::string& text : states) {
      placements.push_back({std::string(1, static_cast<char>('a' + placements.size())), "training",
                            75, 0.4, text, 0, 0});
    }
    const std::optional<OddRank> found = FindOddRank(placements);
    return found ? found->rank + " on " + found->worker_id + " " + found->state : "";
  };
  EXPECT_EQ(odd({"rank 0 sleeping, rank 1 sleeping", "rank 2 stopped, rank 3 sleeping"}),
            "rank 2 on b stopped");
  EXPECT_EQ(odd({"rank 0 waiting for a disk", "rank 1 sleeping"}),
            "rank 0 on a waiting for a disk");
  EXPECT_EQ(odd({"rank 0 running, rank 1 running", "rank 2 stopped"}), "rank 2 on b stopped");
  EXPECT_EQ(odd({"rank 0 sleeping, rank 1 running", "rank 2 running"}), "")
      << "a sleeper waits, and which one computes in vain is not known";
  EXPECT_EQ(odd({"rank 0 sleeping", "rank 1 sleeping"}), "");
  EXPECT_EQ(odd({"rank 0 stopped, rank 1 running", "rank 2 sleeping"}), "") << "too many differ";
  EXPECT_EQ(odd({"rank 0 stopped"}), "") << "nobody waits for it";
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce", "rank 1 sleeping"}), "rank 1 on b sleeping");
  EXPECT_EQ(odd({"rank 0 running in all-reduce", "rank 1 stopped"}), "rank 1 on b stopped");
  EXPECT_EQ(odd({"rank 0 sleeping in broadcast, rank 1 sleeping in all-reduce", "rank 2 running"}),
            "rank 2 on b running");
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce, rank 1 sleeping, rank 2 stopped"}),
            "rank 2 on a stopped")
      << "of those that do not wait";
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce, rank 1 sleeping, rank 2 sleeping"}), "");
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce, rank 1 running in all-reduce",
                 "rank 2 sleeping in all-gather"}),
            "rank 2 on b sleeping in all-gather")
      << "they do not meet";
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce", "rank 1 running in all-gather"}), "");
  EXPECT_EQ(odd({"rank 0 sleeping in all-reduce", "rank 1 running in all-reduce"}), "");
  EXPECT_EQ(odd({"", "rank"}), "");
}

TEST(Hang, IsSaidWithWhoDoesWhat) {
  std::vector<PlacementActivity> placements = {{"a", "training", 75, 0.4, "rank 0 sleeping", 0, 0},
                                               {"b", "training", 90, 0.4, "rank 1 stopped", 0, 0}};
  EXPECT_THAT(*FindHang(placements, {}, {}, {}),
              AllOf(HasSubstr("no step was made for 75 s, at most 20 s are expected (steps took up "
                              "to 0.4 s)"),
                    HasSubstr("a: training, rank 0 sleeping; b: training, rank 1 stopped; rank 1 "
                              "on worker b seems to be what the others wait for: it is stopped")));
  const ActivityForecast forecast{.step_seconds = 2};
  EXPECT_THAT(*FindHang(std::vector{Placement("starting", 400)}, forecast, {}, {}),
              HasSubstr("no sign of life while starting for 400 s, at most 300 s are expected (a "
                        "step took up to 2.0 s)"));
  EXPECT_THAT(*FindHang(std::vector{Placement("training", 25)}, forecast, {}, {}),
              HasSubstr("no sign of life in the first step for 25 s, at most 20 s are expected (it "
                        "should take 2.0 s)"));
}

}  // namespace
}  // namespace weft::coordinator
