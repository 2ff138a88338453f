#pragma once

#include <cstdint>

namespace weft {

/// `value` as a double, for formulas that count in whole numbers and result in seconds or shares.
/// The name is short because nearly every operand of such a formula needs it.
constexpr double D(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace weft
