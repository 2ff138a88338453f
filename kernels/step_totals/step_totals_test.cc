#include "kernels/step_totals/step_totals.h"

#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(StepTotals, MatchTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::StepTotalsCases()), "");
}

TEST(StepTotals, RefuseArgumentsThatDoNotFit) {
  double sum = 0;
  int64_t count = 0;
  float factor = 0;
  int32_t made = 0;
  std::vector<float> losses(3);
  std::vector<int32_t> classes(4);
  const TensorView rows(losses.data(), DType::kF32, {3});
  const auto refused = [](const Status& status) { return status.code() == StatusCode::kInvalid; };
  EXPECT_TRUE(refused(AddLosses({}, {.losses = rows})));
  EXPECT_TRUE(refused(AddLosses({}, {.losses = rows,
                                     .predictions = {classes.data(), DType::kI32, {4}},
                                     .targets = {classes.data(), DType::kI32, {3}},
                                     .sum = &sum,
                                     .right = &count})));
  DecideUpdateArgs args = {
      .loss_sum = &sum, .square_sum = &sum, .non_finite = &count, .factor = &factor, .made = &made};
  EXPECT_TRUE(DecideUpdate({}, args).ok());
  args.targets = 0;
  EXPECT_TRUE(refused(DecideUpdate({}, args)));
  args.targets = 1;
  args.made = nullptr;
  EXPECT_TRUE(refused(DecideUpdate({}, args)));
}

}  // namespace
}  // namespace weft::kernels
