#include "kernels/linear_fp8/linear_fp8.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;

TEST(LinearFp8, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::LinearFp8Cases()), "");
}

// Every sum is exact in f32, whatever the order of its terms.
TEST(LinearFp8, SumsOfWholeNumbersAreExact) {
  constexpr int64_t kRows = 40, kSize = 96;
  PhiloxStream rng({.seed = 5});
  TestTensor a(DType::kF8E5M2, {kRows, kSize}), b(DType::kF8E4M3, {kSize, kSize});
  TestTensor quarter(DType::kF32, {1}), c(DType::kF32, {kRows, kSize});
  a.RandomIntegers(rng, -4, 5);
  b.RandomIntegers(rng, -16, 17);
  quarter.Assign({0.25});
  ASSERT_TRUE(
      MatmulFp8({},
                {.a = {a.view(), quarter.view()}, .b = {b.view(), quarter.view()}, .c = c.view()})
          .ok());
  const std::vector<double> x = a.Values(), w = b.Values(), y = c.Values();
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kSize; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kSize; ++k) sum += x[m * kSize + k] * w[n * kSize + k];
      ASSERT_EQ(y[m * kSize + n], sum / 16);
    }
  }
}

TEST(LinearFp8, ANanInAnOperandReachesItsRow) {
  TestTensor a(DType::kF8E4M3, {2, 16}), b(DType::kF8E4M3, {16, 16});
  TestTensor one(DType::kF32, {1}), c(DType::kBF16, {2, 16});
  std::vector<double> ones(32, 1.0);
  ones[3] = NAN;
  a.Assign(ones);
  b.Assign(std::vector<double>(256, 1.0));
  one.Assign({1});
  ASSERT_TRUE(
      MatmulFp8({}, {.a = {a.view(), one.view()}, .b = {b.view(), one.view()}, .c = c.view()})
          .ok());
  EXPECT_TRUE(std::isnan(c.Values()[0]));
  EXPECT_EQ(c.Values()[16], 16);
}

TEST(LinearFp8, RefusesWhatTensorCoresDoNotTake) {
  TestTensor e4m3(DType::kF8E4M3, {16, 32}), e5m2(DType::kF8E5M2, {16, 32});
  TestTensor odd(DType::kF8E4M3, {16, 24}), few(DType::kF8E4M3, {8, 32});
  TestTensor scale(DType::kF32, {1}), bf16(DType::kBF16, {16, 16}), f32(DType::kF32, {16, 16});
  TestTensor narrow(DType::kBF16, {16, 8}), bias(DType::kBF16, {16});
  const auto refusal = [](const MatmulFp8Args& args) {
    const Status status = MatmulFp8({}, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << status.ToString();
    return std::string(status.message());
  };
  const Fp8Matrix fine{e4m3.view(), scale.view()};
  using ::testing::HasSubstr;
  EXPECT_THAT(
      refusal(
          {.a = {e5m2.view(), scale.view()}, .b = {e5m2.view(), scale.view()}, .c = bf16.view()}),
      HasSubstr("both f8_e5m2"));
  EXPECT_THAT(
      refusal({.a = {odd.view(), scale.view()}, .b = {odd.view(), scale.view()}, .c = bf16.view()}),
      HasSubstr("k 24"));
  EXPECT_THAT(refusal({.a = fine, .b = {few.view(), scale.view()}, .c = narrow.view()}),
              HasSubstr("n 8"));
  EXPECT_THAT(refusal({.a = fine, .b = fine, .c = narrow.view()}), HasSubstr("c has shape"));
  EXPECT_THAT(refusal({.a = fine, .b = {e4m3.view(), {}}, .c = bf16.view()}),
              HasSubstr("b's inverse_scale"));
  EXPECT_THAT(refusal({.a = fine, .b = fine, .c = bf16.view(), .accumulate = true}),
              HasSubstr("only f32"));
  EXPECT_THAT(refusal({.a = fine, .b = fine, .bias = bias.view(), .c = f32.view()}),
              HasSubstr("bf16 c"));
}

}  // namespace
}  // namespace weft::kernels
