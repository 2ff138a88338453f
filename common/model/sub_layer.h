#pragma once

#include <cstdint>

namespace weft {

/// A part of a transformer block that has a residual branch of its own.
enum class SubLayer : uint8_t {
  kAttention,
  kMlp,  ///< Or a mixture of experts.
};

}  // namespace weft
