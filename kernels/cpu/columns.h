#pragma once

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {

/// Calls fn(column, count) for the whole vectors of a row (count == kLanes), then for its rest.
template <class Fn>
WEFT_INLINE void ForColumns(int64_t width, Fn fn) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) fn(c, kLanes);
  if (c < width) fn(c, width - c);
}

}  // namespace weft::kernels::cpu::WEFT_ISA
