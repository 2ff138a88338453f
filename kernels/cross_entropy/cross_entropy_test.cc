#include "kernels/cross_entropy/cross_entropy.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cross_entropy/cross_entropy_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

struct Call {
  std::vector<float> logits;
  std::vector<int32_t> targets;
  int64_t vocabulary;
  std::vector<float> losses = {};

  Status Run() {
    auto rows = static_cast<int64_t>(targets.size());
    auto columns = static_cast<int64_t>(logits.size()) / rows;
    losses.assign(targets.size(), -1);
    return CrossEntropy({}, {.logits = TensorView(logits.data(), DType::kF32, {rows, columns}),
                             .targets = TensorView(targets.data(), DType::kI32, {rows}),
                             .vocabulary = vocabulary,
                             .losses = TensorView(losses.data(), DType::kF32, {rows})});
  }
};

TEST(CrossEntropy, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::CrossEntropyCases()), "");
}

TEST(CrossEntropy, ReferenceGradientIsThatOfTheReferenceLoss) {
  std::vector<double> logits = {0.3, -1, 2, 0.1, 5, 1, 1, 1, -2, 7, -1, 0.5, 0, 0.25, 9};
  std::vector<double> targets = {2, -1, 0};
  auto loss = [&](const std::vector<double>& x) {
    auto losses = CrossEntropyLossRef(x, targets, 5, 4);
    return 3 * std::accumulate(losses.begin(), losses.end(), 0.0);
  };
  EXPECT_EQ(
      testing::GradientMismatch(loss, logits, CrossEntropyGradientRef(logits, targets, 5, 4, 3)),
      "");
}

TEST(CrossEntropy, EqualLogitsCostTheLogOfTheVocabulary) {
  Call call = {std::vector<float>(8, 1000.0f), {3}, 8};
  ASSERT_TRUE(call.Run().ok());
  EXPECT_NEAR(call.losses[0], std::log(8.0), 1e-6);
  EXPECT_NEAR(call.logits[0], 0.125, 1e-6);
  EXPECT_NEAR(call.logits[3], -0.875, 1e-6);
}

TEST(CrossEntropy, IgnoredRowsAndPaddedColumnsGetZeroGradientWhateverTheyHold) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  Call call = {{1, 2, nan, nan, nan, nan}, {1, kIgnoreTarget}, 2};
  ASSERT_TRUE(call.Run().ok());
  EXPECT_EQ(call.losses[1], 0);
  for (int i : {2, 3, 4, 5}) EXPECT_EQ(call.logits[i], 0) << i;
  EXPECT_LT(call.logits[1], 0);
}

TEST(CrossEntropy, NanInALogitReachesTheLoss) {
  Call call = {{1, std::numeric_limits<float>::quiet_NaN(), 0}, {0}, 3};
  ASSERT_TRUE(call.Run().ok());
  EXPECT_TRUE(std::isnan(call.losses[0]));
}

TEST(CrossEntropy, RefusesTargetsOutsideTheVocabularyBeforeWriting) {
  for (int32_t target : {-2, 3, 4, std::numeric_limits<int32_t>::max()}) {
    Call call = {{1, 2, 3, 4, 1, 2, 3, 4}, {0, target}, 3};
    Status status = call.Run();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_NE(status.message().find("row 1"), std::string::npos) << status.message();
    EXPECT_EQ(call.logits[0], 1);
  }
  Call wide = {{1, 2, 3, 4}, {0}, 5};
  EXPECT_EQ(wide.Run().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
