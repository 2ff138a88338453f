#include "common/float8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft {
namespace {

// What the fields of a code mean, by the specification.
template <class T>
double Value(uint8_t bits) {
  const int fraction = bits & ((1 << T::kFractionBits) - 1);
  const int exponent = (bits & 0x7f) >> T::kFractionBits;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (T::kFractionBits == 3 && (bits & 0x7f) == 0x7f) return NAN;
  if (T::kFractionBits == 2 && exponent == 0x1f) return fraction == 0 ? sign * INFINITY : NAN;
  const int implicit = exponent == 0 ? 0 : 1 << T::kFractionBits;
  return sign *
         std::ldexp(implicit + fraction, std::max(exponent, 1) - T::kBias - T::kFractionBits);
}

// The code of the nearest positive number; of two as near, the even code.
template <class T>
uint8_t Nearest(double value) {
  // So that distances of what is far beyond the largest differ in double.
  value = std::min(value, 2.0 * T::kLargest);
  uint8_t best = 0;
  for (uint8_t code = 1; std::isfinite(Value<T>(code)); ++code) {
    const double now = std::abs(Value<T>(code) - value), before = std::abs(Value<T>(best) - value);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

template <class T>
class Float8 : public ::testing::Test {};
using Types = ::testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8, Types);

TYPED_TEST(Float8, EveryCodeHasItsValueAndComesBack) {
  int finite = 0;
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const double want = Value<TypeParam>(bits);
    const float value = ToFloat(TypeParam{bits});
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(ToFloat8<TypeParam>(value).bits, 0x7f) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), want) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    // bf16 holds it: the emulation of products relies on that.
    EXPECT_EQ(ToFloat(ToBFloat16(value)), value) << code;
    if (std::isinf(want)) continue;
    ++finite;
    EXPECT_EQ(ToFloat8<TypeParam>(value).bits, code);
  }
  EXPECT_EQ(finite, TypeParam::kFractionBits == 3 ? 254 : 248);
}

TYPED_TEST(Float8, FloatsGoToTheNearestTiesToTheEvenCodeAndTheRestToTheLargest) {
  constexpr float kLargest = TypeParam::kLargest;
  std::vector<float> values = {kLargest, kLargest * 1.03f, kLargest * 1.2f, 1e30f, 1e-30f, 1e-42f};
  // The middles between all values, and their neighbours.
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const double next = Value<TypeParam>(static_cast<uint8_t>(code + 1));
    if (!std::isfinite(next)) break;
    const auto middle = static_cast<float>((Value<TypeParam>(code) + next) / 2);
    for (float towards : {0.0f, middle, 1e9f}) values.push_back(std::nextafter(middle, towards));
  }
  PhiloxStream rng({.seed = 8});
  for (int i = 0; i < 20000; ++i) {
    values.push_back(
        std::ldexp(1 + UniformFloat(rng.Next()), static_cast<int>(rng.Below(40)) - 20));
  }
  for (float value : values) {
    const uint8_t want = Nearest<TypeParam>(value);
    ASSERT_EQ(ToFloat8<TypeParam>(value).bits, want) << value;
    ASSERT_EQ(ToFloat8<TypeParam>(-value).bits, want | 0x80) << value;
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToFloat8<TypeParam>(kInfinity)), kLargest);
  EXPECT_EQ(ToFloat(ToFloat8<TypeParam>(-kInfinity)), -kLargest);
}

TEST(Float8Fixture, AgreesWithPyTorch) {
  std::ifstream file(WEFT_SOURCE_DIR "/common/testdata/float8.txt");
  std::string line;
  int lines = 0;
  for (; std::getline(file, line); ++lines) {
    char name[8] = {}, direction[8] = {};
    unsigned number = 0, code = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "%7s %7s %x %x", name, direction, &number, &code), 4);
    const bool e4m3 = std::string(name) == "e4m3";
    const auto bits = static_cast<uint8_t>(code);
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(number));
    if (std::string(direction) == "to") {
      EXPECT_EQ(e4m3 ? ToFloat8E4M3(value).bits : ToFloat8E5M2(value).bits, bits) << line;
    } else {
      EXPECT_EQ(e4m3 ? ToFloat(Float8E4M3{bits}) : ToFloat(Float8E5M2{bits}), value) << line;
    }
  }
  EXPECT_GT(lines, 1000);
}

}  // namespace
}  // namespace weft
