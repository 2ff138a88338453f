#pragma once

#include <cstdint>

#include "common/rng.h"

namespace weft::kernels {

/// Elements are dropped where the upper 24 bits of their word are below `threshold`, and multiplied
/// by `scale` otherwise.
struct DropoutDraw {
  PhiloxKey key;
  int32_t threshold;
  float scale;
};

}  // namespace weft::kernels
