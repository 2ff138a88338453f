#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

/// Element types of tensors.
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kU16, kU8, kF8E4M3, kF8E5M2 };

constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  return 0;
}

/// "f32", "bf16", ...
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kF8E5M2:
      return "f8_e5m2";
  }
  return "?";
}

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

}  // namespace weft
