#include "worker/engine/techniques/preference_optimization/dpo.h"

#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

using Doubles = std::vector<double>;

TEST(Dpo, NumbersOfTheFormula) {
  // z = 0.5 ((-10 + 12) - (-7 + 6)) = 1.5
  const DpoResult plain =
      DpoLosses({.method = "dpo", .beta = 0.5}, Doubles{-10, -7}, Doubles{-12, -6});
  EXPECT_NEAR(plain.losses.losses[0], 0.2014132779827524, 1e-15);  // log(1 + exp(-1.5))
  EXPECT_EQ(plain.losses.losses[1], plain.losses.losses[0]);
  EXPECT_NEAR(plain.chosen_reward, 1, 1e-15);
  EXPECT_NEAR(plain.rejected_reward, -0.5, 1e-15);
  EXPECT_EQ(plain.accuracy, 1);
  const DpoResult smooth = DpoLosses({.method = "dpo", .beta = 0.5, .label_smoothing = 0.1},
                                     Doubles{-10, -7}, Doubles{-12, -6});
  EXPECT_NEAR(smooth.losses.losses[0], 0.9 * 0.2014132779827524 + 0.1 * 1.7014132779827524, 1e-15);
}

TEST(Dpo, EqualRewardsCostTheLogOfTwoAndAreNoSuccess) {
  const DpoResult result =
      DpoLosses({.method = "dpo"}, Doubles{-3, -9, -4, -4}, Doubles{-3, -9, -5, -3});
  EXPECT_NEAR(result.losses.losses[0], std::log(2.0), 1e-15);
  EXPECT_EQ(result.accuracy, 0.5);
}

TEST(Dpo, DerivativesAreThoseOfTheSumOfLosses) {
  const Doubles reference = {-20, -18, -3, -40, -7, -7};
  const Doubles at = {-19, -21, -5, -30, -7.5, -6};
  for (const double smoothing : {0.0, 0.2}) {
    const PreferenceSpec spec = {.method = "dpo", .beta = 0.3, .label_smoothing = smoothing};
    const auto sum = [&](const Doubles& x) {
      const Doubles losses = DpoLosses(spec, x, reference).losses.losses;
      return std::accumulate(losses.begin(), losses.end(), 0.0);
    };
    const Doubles found = DpoLosses(spec, at, reference).losses.derivatives;
    for (size_t s = 0; s < at.size(); ++s) {
      Doubles above = at, below = at;
      above[s] += 1e-4;
      below[s] -= 1e-4;
      EXPECT_NEAR(found[s], (sum(above) - sum(below)) / 2e-4, 1e-8) << s << " " << smoothing;
    }
  }
}

TEST(Dpo, LargeMarginsStayFinite) {
  for (const double margin : {-1e6, 1e6}) {
    const DpoResult result =
        DpoLosses({.method = "dpo", .beta = 1}, Doubles{margin, 0}, Doubles{0, 0});
    EXPECT_NEAR(result.losses.losses[0], margin < 0 ? 1e6 : 0, 1e-9);
    EXPECT_NEAR(result.losses.derivatives[0], margin < 0 ? -2 : 0, 1e-9);
  }
}

}  // namespace
}  // namespace weft::engine
