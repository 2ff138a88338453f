#pragma once

#include <bit>
#include <cstdint>

#include "common/dtype.h"

namespace weft {

/// A bfloat16 bit pattern: the upper half of a float.
struct BFloat16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
constexpr float ToFloat(float value) {
  return value;
}

/// Round to nearest even; NaN stays a (quiet) NaN.
constexpr BFloat16 ToBFloat16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

/// An IEEE half: sign, 5 bits of exponent, 10 of fraction.
struct Half {
  uint16_t bits = 0;
};

constexpr float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x400u) {  // subnormal: a multiple of 2^-24
    const float positive = static_cast<float>(magnitude) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(positive) | sign);
  }
  const uint32_t exponent_shift = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
  const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
  return std::bit_cast<float>(sign | quiet | ((magnitude << 13) + exponent_shift));
}

/// Round to nearest even; from 65520 on infinity, as IEEE 754 has it; NaN stays a (quiet) NaN.
constexpr Half ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude <
             0x38800000u) {  // below 2^-14: in units of 2^-24, those of numbers near 0.5
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

/// Rounded to type T.
template <class T>
constexpr T FromFloat(float value);
template <>
constexpr float FromFloat<float>(float value) {
  return value;
}
template <>
constexpr BFloat16 FromFloat<BFloat16>(float value) {
  return ToBFloat16(value);
}
template <>
constexpr Half FromFloat<Half>(float value) {
  return ToHalf(value);
}

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<Half> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<uint16_t> = DType::kU16;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kU8;

}  // namespace weft
