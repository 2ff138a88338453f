#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace weft {

/// `value` as a double, for formulas that count in whole numbers and result in seconds or shares.
/// The name is short because nearly every operand of such a formula needs it.
constexpr double D(int64_t value) {
  return static_cast<double>(value);
}

/// The least multiple of `multiple` that is not below `value`. `value` >= 0, `multiple` > 0.
template <std::integral Integer>
constexpr Integer RoundUp(Integer value, std::type_identity_t<Integer> multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace weft
