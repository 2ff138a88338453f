#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

/// Element types of tensors.
enum class DType : uint8_t { kF32, kBF16, kI32, kU16, kU8 };

constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
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
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
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

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<uint16_t> = DType::kU16;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kU8;

}  // namespace weft
