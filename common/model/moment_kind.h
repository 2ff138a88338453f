#pragma once

#include <cstdint>

namespace weft {

/// What a state tensor of an optimizer is for each number of its parameter.
enum class MomentKind : uint8_t {
  kNone,    ///< Something else, or not for each number.
  kFirst,   ///< A running mean, or sum, of gradients.
  kSecond,  ///< A running mean of squared gradients.
};

}  // namespace weft
