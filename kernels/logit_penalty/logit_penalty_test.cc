#include "kernels/logit_penalty/logit_penalty.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/logit_penalty/logit_penalty_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(LogitPenalty, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::LogitPenaltyCases()), "");
}

TEST(LogitPenalty, ReferenceGradientIsThatOfTheReferenceSquares) {
  const std::vector<double> logits = {0.3, -1, 2, 0.1, 5, 1, 1, 1, -2, 7, -1, 0.5, 0, 0.25, 9};
  const std::vector<double> targets = {2, -1, 0};
  const auto penalty = [&](const std::vector<double>& x) {
    const std::vector<double> squares = LogitSquaresRef(x, targets, 5, 4);
    return 3 * std::accumulate(squares.begin(), squares.end(), 0.0);
  };
  EXPECT_EQ(
      testing::GradientMismatch(penalty, logits, LogitSquaresGradientRef(logits, targets, 5, 4, 3)),
      "");
}

TEST(LogitPenalty, RefusesArgumentsThatDoNotFit) {
  std::vector<float> logits(6), gradient(6), squares(2);
  std::vector<int32_t> targets(2);
  LogitPenaltyArgs args = {.logits = TensorView(logits.data(), DType::kF32, {2, 3}),
                           .targets = TensorView(targets.data(), DType::kI32, {2}),
                           .vocabulary = 3,
                           .gradient = TensorView(gradient.data(), DType::kF32, {2, 3}),
                           .squares = TensorView(squares.data(), DType::kF32, {2})};
  ASSERT_TRUE(LogitPenalty({}, args).ok());
  args.vocabulary = 4;
  EXPECT_EQ(LogitPenalty({}, args).message(),
            "LogitPenalty: vocabulary 4 is not in 1 to the 3 columns of logits");
  args.vocabulary = 3;
  args.gradient = args.logits;
  EXPECT_EQ(LogitPenalty({}, args).message(), "LogitPenalty: the gradient is added to the logits");
}

}  // namespace
}  // namespace weft::kernels
