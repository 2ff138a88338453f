#include "common/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft {
namespace {

// What the fields of a half mean, by IEEE 754.
double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// The half nearest to a positive number: the lower code of the two around it, or the upper one, or
// the even one of them. Code 0x7c00 is 2^16 here, where infinity begins to be nearer.
uint16_t NearestHalf(double value) {
  const auto at = [](uint16_t code) { return code == 0x7c00 ? 65536.0 : HalfValue(code); };
  uint16_t low = 0, high = 0x7c00;
  if (value >= at(high)) return high;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (at(middle) <= value ? low : high) = middle;
  }
  const double below = value - at(low), above = at(high) - value;
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

TEST(Half, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 0x10000; ++code) {
    const Half half{static_cast<uint16_t>(code)};
    const float value = ToFloat(half);
    if (std::isnan(HalfValue(half.bits))) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(ToFloat(ToHalf(value)))) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), HalfValue(half.bits)) << code;
    ASSERT_EQ(std::signbit(value), code >= 0x8000) << code;
    ASSERT_EQ(ToHalf(value).bits, half.bits);
  }
}

TEST(Half, FloatsGoToTheNearestAndTiesToTheEvenCode) {
  std::vector<float> values = {65504,           65519.996f,   65520,          65536,
                               1e30f,           0x1.0p-24f,   0x1.0p-25f,     0x1.8p-25f,
                               0x1.000002p-25f, 0x1.0p-26f,   1e-40f,         0x1.ffcp-15f,
                               0x1.ffep-15f,    0x1.fffp-15f, 1 + 0x1.0p-11f, 1 + 0x1.8p-10f};
  PhiloxStream rng({.seed = 4});
  for (int i = 0; i < 200000; ++i) {
    // From below half the smallest to above infinity.
    const auto exponent = static_cast<int>(rng.Below(46)) - 28;
    values.push_back(std::ldexp(1 + UniformFloat(rng.Next()), exponent));
  }
  for (float value : values) {
    ASSERT_EQ(ToHalf(value).bits, NearestHalf(value)) << value;
    ASSERT_EQ(ToHalf(-value).bits, NearestHalf(value) | 0x8000) << value;
  }
}

}  // namespace
}  // namespace weft
