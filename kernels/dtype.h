#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/float8.h"

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
template <>
constexpr Float8E4M3 FromFloat<Float8E4M3>(float value) {
  return ToFloat8E4M3(value);
}
template <>
constexpr Float8E5M2 FromFloat<Float8E5M2>(float value) {
  return ToFloat8E5M2(value);
}

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<Half> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<Float8E4M3> = DType::kF8E4M3;
template <>
inline constexpr DType kDTypeOf<Float8E5M2> = DType::kF8E5M2;
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

/// The same for a type of 8 bits, E4M3 or E5M2.
template <class Fn>
decltype(auto) WithFloat8Type(DType dtype, Fn&& fn) {
  if (dtype == DType::kF8E4M3) return fn.template operator()<Float8E4M3>();
  return fn.template operator()<Float8E5M2>();
}

}  // namespace weft
