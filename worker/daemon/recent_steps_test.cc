#include "worker/daemon/recent_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace weft::daemon {
namespace {

TEST(RecentSteps, TheFirstOneCountsUntilThereIsAnother) {
  RecentSteps steps;
  EXPECT_EQ(steps.LongestSeconds(), 0);
  steps.Add(30);
  EXPECT_EQ(steps.LongestSeconds(), 30);
  steps.Add(1);
  EXPECT_EQ(steps.LongestSeconds(), 1);
  steps.Add(2);
  steps.Add(1);
  EXPECT_EQ(steps.LongestSeconds(), 2);
}

TEST(RecentSteps, AreTheLatestThousand) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(1, 2);
  RecentSteps steps;
  std::vector<double> all;
  for (int64_t step = 0; step < 5000; ++step) {
    all.push_back(step == 1500 ? 40 : seconds(random));
    steps.Add(all.back());
    const auto first = step == 0 ? all.begin() : std::max(all.begin() + 1, all.end() - 1000);
    ASSERT_EQ(steps.LongestSeconds(), *std::max_element(first, all.end())) << step;
  }
}

}  // namespace
}  // namespace weft::daemon
