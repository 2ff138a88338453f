#include "kernels/hadamard/hadamard.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Hadamard, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::HadamardCases()), "");
}

TEST(Hadamard, RefusesWhatDoesNotFit) {
  std::array<float, 6> numbers{};
  const TensorView a(numbers.data(), DType::kF32, {2, 3});
  EXPECT_TRUE(Hadamard({}, {a, a, a}).ok());
  const TensorView turned(numbers.data(), DType::kF32, {3, 2});
  EXPECT_EQ(Hadamard({}, {a, turned, a}).code(), StatusCode::kInvalid);
  const TensorView narrow(numbers.data(), DType::kBF16, {2, 3});
  EXPECT_EQ(Hadamard({}, {a, a, narrow}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
