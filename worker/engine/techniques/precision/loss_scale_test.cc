#include "worker/engine/techniques/precision/loss_scale.h"

#include <vector>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

std::vector<double> Scales(const LossScalingSpec& spec, const std::vector<bool>& overflows) {
  LossScale state = FirstLossScale(spec);
  std::vector<double> scales;
  for (bool overflow : overflows) {
    scales.push_back(state.scale);
    state = NextLossScale(spec, state, overflow);
  }
  scales.push_back(state.scale);
  return scales;
}

// What torch.amp.GradScaler(init_scale=16, growth_factor=2, backoff_factor=0.5, growth_interval=3)
// goes through on these steps.
TEST(LossScaleTest, FollowsTheRuleOfPyTorch) {
  const LossScalingSpec spec = {.initial = 16, .growth = 2, .backoff = 0.5, .growth_interval = 3};
  EXPECT_EQ(Scales(spec, {false, false, false, false, true, false, false, false, true, true}),
            (std::vector<double>{16, 16, 16, 32, 32, 16, 16, 16, 32, 16, 8}));
}

TEST(LossScaleTest, StaysBetweenOneAndTheLargestFloat) {
  LossScalingSpec spec = {.initial = 4, .growth = 1024, .backoff = 0.25, .growth_interval = 1};
  EXPECT_EQ(Scales(spec, {true, true, true}), (std::vector<double>{4, 1, 1, 1}));
  spec.initial = 1e37;
  EXPECT_EQ(Scales(spec, {false, false}), (std::vector<double>{1e37, 1e37, 1e37}));
}

}  // namespace
}  // namespace weft::engine
