#include "kernels/quantize_int8/quantize_int8.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(QuantizeInt8, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::QuantizeInt8Cases()), "");
}

struct Codes {
  std::array<uint8_t, 4> q;
  float scale;
  std::array<float, 4> back;
};

Codes ThereAndBack(std::array<float, 4> x) {
  Codes codes = {};
  const TensorView q(codes.q.data(), DType::kU8, {1, 4});
  const TensorView scale(&codes.scale, DType::kF32, {1, 1});
  EXPECT_TRUE(QuantizeInt8({}, {{x.data(), DType::kF32, {1, 4}}, q, scale, 4}).ok());
  const TensorView back(codes.back.data(), DType::kF32, {1, 4});
  EXPECT_TRUE(DequantizeInt8({}, {q, scale, back, 4}).ok());
  return codes;
}

TEST(QuantizeInt8, HalvesGoToEvenCodesAndTheLargestComesBack) {
  const Codes codes = ThereAndBack({127.0f, 0.5f, 1.5f, -2.5f});
  EXPECT_EQ(codes.q, (std::array<uint8_t, 4>{127, 0, 2, 254}));
  EXPECT_EQ(codes.scale, 1.0f);
  EXPECT_EQ(codes.back, (std::array<float, 4>{127, 0, 2, -2}));
}

TEST(QuantizeInt8, GroupsWithoutNumbersToScaleByAreZerosOrNan) {
  for (const std::array<float, 4>& tiny :
       {std::array<float, 4>{}, std::array<float, 4>{1e-40f, -1e-33f, 0, 0}}) {
    EXPECT_EQ(ThereAndBack(tiny).back, (std::array<float, 4>{}));
  }
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const float value : ThereAndBack({1.0f, wrong, 2.0f, 3.0f}).back) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
  // The largest finite number is one to scale by.
  EXPECT_EQ(ThereAndBack({std::numeric_limits<float>::max(), 0, 0, 0}).q[0], 127);
}

TEST(QuantizeInt8, RefusesArgumentsThatDoNotFit) {
  std::array<float, 8> memory{};
  std::array<uint8_t, 8> bytes{};
  const TensorView x(memory.data(), DType::kF32, {2, 4});
  const TensorView q(bytes.data(), DType::kU8, {2, 4});
  const TensorView scale(memory.data(), DType::kF32, {2, 1});
  EXPECT_EQ(QuantizeInt8({}, {x, q, scale, 2}).ToString(),
            "INVALID: QuantizeInt8: scale has shape [2, 1] instead of [2, 2]");
  EXPECT_EQ(QuantizeInt8({}, {x, q, scale, 0}).ToString(),
            "INVALID: QuantizeInt8: group is below 1");
  EXPECT_EQ(DequantizeInt8({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
