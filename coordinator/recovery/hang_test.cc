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
  return {"w", activity, silent_seconds, longest_step, "rank 0 sleeping"};
}

bool Hangs(const std::vector<PlacementActivity>& placements, double predicted = 0,
           const HangRules& rules = {}) {
  return FindHang(placements, predicted, rules).has_value();
}

TEST(Hang, OfQuickStepsIsCalledAfterTheLeastTime) {
  EXPECT_FALSE(Hangs({Placement("training", 60, 0.5)}));
  EXPECT_TRUE(Hangs({Placement("training", 61, 0.5)}));
}

TEST(Hang, OfSlowStepsIsCalledAfterTenOfTheLongestKnown) {
  EXPECT_FALSE(Hangs({Placement("training", 299, 30)}));
  EXPECT_TRUE(Hangs({Placement("training", 301, 30)}));
  EXPECT_FALSE(Hangs({Placement("training", 299)}, /*predicted=*/30));
  EXPECT_FALSE(Hangs({Placement("training", 299), Placement("training", 299, 30)}))
      << "of any placement";
}

TEST(Hang, WhatIsNoStepMaySeemIdleForLonger) {
  for (const char* activity : {"starting", "evaluating", "saving", "loading"}) {
    EXPECT_FALSE(Hangs({Placement(activity, 299, 0.5)})) << activity;
    EXPECT_TRUE(Hangs({Placement(activity, 301, 0.5)})) << activity;
  }
}

TEST(Hang, OneShareThatShowsLifeIsEnough) {
  EXPECT_FALSE(Hangs({Placement("training", 500, 0.5), Placement("training", 1, 0.5)}));
  EXPECT_FALSE(Hangs({Placement("training", 100, 0.5), Placement("saving", 100, 0.5)}));
  EXPECT_TRUE(Hangs({Placement("training", 500, 0.5), Placement("training", 70, 0.5)}));
}

TEST(Hang, IsNotConcludedFromWhatIsNotKnown) {
  EXPECT_FALSE(Hangs({}));
  EXPECT_FALSE(Hangs({Placement("training", 500, 0.5), Placement("", 0)}));
  EXPECT_FALSE(Hangs({Placement("training", std::nan(""), 0.5)}));
  EXPECT_FALSE(Hangs({Placement("training", 1e9)}, 0, {.least_seconds = 0})) << "switched off";
}

TEST(OddRank, IsTheOneThatDoesNotWaitAsTheOthersDo) {
  const auto odd = [](const std::vector<std::string>& states) {
    std::vector<PlacementActivity> placements;
    for (const std::string& text : states) {
      placements.push_back(
          {std::string(1, static_cast<char>('a' + placements.size())), "training", 75, 0.4, text});
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
  EXPECT_EQ(odd({"", "rank"}), "");
}

TEST(Hang, IsSaidWithWhoDoesWhat) {
  std::vector<PlacementActivity> placements = {{"a", "training", 75, 0.4, "rank 0 sleeping"},
                                               {"b", "training", 90, 0.4, "rank 1 stopped"}};
  EXPECT_THAT(*FindHang(placements, 0, {}),
              AllOf(HasSubstr("no step was made for 75 s, at most 60 s are expected (steps took up "
                              "to 0.4 s)"),
                    HasSubstr("a: training, rank 0 sleeping; b: training, rank 1 stopped; rank 1 "
                              "on worker b seems to be what the others wait for: it is stopped")));
  EXPECT_THAT(*FindHang(std::vector{Placement("starting", 400)}, 2, {}),
              HasSubstr("no sign of life while starting for 400 s, at most 300 s are expected"));
}

}  // namespace
}  // namespace weft::coordinator
