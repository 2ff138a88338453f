#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace weft {

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

/// Returns fn.operator()<T>() with the C++ type of `dtype`, which is one of kFloatTypes.
template <class Fn>
decltype(auto) WithFloatType(DType dtype, Fn&& fn) {
  if (dtype == DType::kF32) return fn.template operator()<float>();
  if (dtype == DType::kBF16) return fn.template operator()<BFloat16>();
  return fn.template operator()<Half>();
}

}  // namespace weft
