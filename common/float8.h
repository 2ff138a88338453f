#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/dtype.h"

namespace weft {

/// A float of 8 bits (OCP 8-bit Floating Point Specification 1.0): sign, 4 bits of exponent with
/// bias 7, 3 of fraction. No infinities; S.1111.111 is a NaN; the largest number is 448, the
/// smallest 2^-9.
struct Float8E4M3 {
  uint8_t bits = 0;
  static constexpr int kFractionBits = 3;
  static constexpr int kBias = 7;
  static constexpr float kLargest = 448.0f;
};

/// Sign, 5 bits of exponent with bias 15, 2 of fraction, with infinities and NaN as IEEE 754 has
/// them. The largest number is 57344, the smallest 2^-16.
struct Float8E5M2 {
  uint8_t bits = 0;
  static constexpr int kFractionBits = 2;
  static constexpr int kBias = 15;
  static constexpr float kLargest = 57344.0f;
};

constexpr float ToFloat(Float8E4M3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  uint32_t positive = (magnitude << 20) + (120u << 23);
  if (magnitude < 8) positive = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1.0p-9f);
  if (magnitude == 0x7fu) positive = 0x7fc00000u;
  return std::bit_cast<float>(sign | positive);
}

constexpr float ToFloat(Float8E5M2 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  uint32_t positive = (magnitude << 21) + (112u << 23);
  if (magnitude < 4) positive = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1.0p-16f);
  if (magnitude >= 0x7cu) positive = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  return std::bit_cast<float>(sign | positive);
}

/// Rounds to nearest even; what is larger than the largest number, infinity too, becomes that
/// number; NaN becomes 0x7f. The bits of CUDA's conversion with __NV_SATFINITE.
template <class T>
constexpr T ToFloat8(float value) {
  constexpr int kShift = 23 - T::kFractionBits;
  // The sum with this has the smallest number of T as the unit of its last bit.
  constexpr float kUnit =
      std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - T::kBias + kShift) << 23);
  constexpr auto kSmallestNormal = static_cast<uint32_t>(127 + 1 - T::kBias) << 23;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fu};
  const uint32_t finite = std::min(magnitude, std::bit_cast<uint32_t>(T::kLargest));
  uint32_t code = 0;
  if (finite < kSmallestNormal) {
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(finite) + kUnit) -
           std::bit_cast<uint32_t>(kUnit);
  } else {
    constexpr uint32_t kHalf = (1u << (kShift - 1)) - 1;
    constexpr auto kRebias = static_cast<uint32_t>(127 - T::kBias) << 23;
    code = (finite + kHalf + (finite >> kShift & 1u) - kRebias) >> kShift;
  }
  return {static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}
constexpr Float8E4M3 ToFloat8E4M3(float value) {
  return ToFloat8<Float8E4M3>(value);
}
constexpr Float8E5M2 ToFloat8E5M2(float value) {
  return ToFloat8<Float8E5M2>(value);
}

/// The largest finite number of kF8E4M3 or kF8E5M2.
constexpr float LargestFloat8(DType dtype) {
  return dtype == DType::kF8E4M3 ? Float8E4M3::kLargest : Float8E5M2::kLargest;
}

}  // namespace weft
