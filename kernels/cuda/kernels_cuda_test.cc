// The case lists of all operations on a CUDA device.

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels {
namespace {

class KernelsOnCuda : public OnCuda {
 protected:
  // Runs the kTest cases; returns the failures, and expects that just these operations are missing.
  std::string Failures(const std::vector<testing::OpCase>& cases,
                       const std::set<std::string>& without = {}) {
    std::string failures;
    std::set<std::string> missing;
    for (const testing::OpCase& op_case : cases) {
      if (op_case.use != testing::CaseUse::kTest) continue;
      failures += testing::CheckCaseOn(*state_, op_case, missing);
    }
    EXPECT_EQ(missing, without);
    return failures;
  }
};

TEST_F(KernelsOnCuda, Activation) {
  EXPECT_EQ(Failures(testing::ActivationCases()), "");
}
TEST_F(KernelsOnCuda, Adafactor) {
  EXPECT_EQ(Failures(testing::AdafactorCases()), "");
}
TEST_F(KernelsOnCuda, Affine) {
  EXPECT_EQ(Failures(testing::AffineCases()), "");
}
TEST_F(KernelsOnCuda, CrossEntropy) {
  EXPECT_EQ(Failures(testing::CrossEntropyCases()), "");
}
TEST_F(KernelsOnCuda, Dropout) {
  EXPECT_EQ(Failures(testing::DropoutCases()), "");
}
TEST_F(KernelsOnCuda, Elementwise) {
  EXPECT_EQ(Failures(testing::ElementwiseCases()), "");
}
TEST_F(KernelsOnCuda, Embedding) {
  EXPECT_EQ(Failures(testing::EmbeddingCases()), "");
}
TEST_F(KernelsOnCuda, GatherRows) {
  EXPECT_EQ(Failures(testing::GatherRowsCases()), "");
}
TEST_F(KernelsOnCuda, LayerNorm) {
  EXPECT_EQ(Failures(testing::LayerNormCases()), "");
}
TEST_F(KernelsOnCuda, NormStat) {
  EXPECT_EQ(Failures(testing::NormStatCases()), "");
}
TEST_F(KernelsOnCuda, Optimizer) {
  EXPECT_EQ(Failures(testing::OptimizerCases()), "");
}
TEST_F(KernelsOnCuda, Patches) {
  EXPECT_EQ(Failures(testing::PatchesCases()), "");
}
TEST_F(KernelsOnCuda, RmsNorm) {
  EXPECT_EQ(Failures(testing::RmsNormCases()), "");
}
TEST_F(KernelsOnCuda, Rope) {
  EXPECT_EQ(Failures(testing::RopeCases()), "");
}
TEST_F(KernelsOnCuda, StochasticRound) {
  EXPECT_EQ(Failures(testing::StochasticRoundCases()), "");
}
TEST_F(KernelsOnCuda, SwiGlu) {
  EXPECT_EQ(Failures(testing::SwiGluCases()), "");
}

TEST_F(KernelsOnCuda, ATargetOutsideTheVocabularyMakesItsLossNan) {
  const testing::ScopedTestDevice device(stream().device, true);
  testing::TestTensor logits(DType::kF32, {3, 4}), targets(DType::kI32, {3});
  testing::TestTensor losses(DType::kF32, {3}), predictions(DType::kI32, {3});
  logits.Assign({1, 5, 5, 9, 3, 3, 3, 3, 0, 1, 2, 9}).Reset();
  targets.Assign({3, kIgnoreTarget, 2}).Reset();
  losses.Reset();
  predictions.Reset();
  ASSERT_TRUE(CrossEntropy(stream(), {.logits = logits.view(),
                                      .targets = targets.view(),
                                      .vocabulary = 3,
                                      .losses = losses.view(),
                                      .predictions = predictions.view()})
                  .ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  for (testing::TestTensor* tensor : {&logits, &losses, &predictions}) tensor->Fetch();
  EXPECT_TRUE(std::isnan(losses.Values()[0]));
  EXPECT_EQ(losses.Values()[1], 0);
  EXPECT_GT(losses.Values()[2], 0);
  EXPECT_EQ(predictions.Values(), (std::vector<double>{1, 0, 2}));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(logits.Values()[i], 0) << i;
  EXPECT_LT(logits.Values()[10], 0);
}

}  // namespace
}  // namespace weft::kernels
