#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// The masks of `blocks` neighbouring blocks; the first begins at `weight`.
template <class T>
using MaskLoop = void (*)(const T* weight, int64_t stride, int64_t blocks, uint16_t* mask);

/// One for each type of weights.
struct MaskLoops {
  MaskLoop<float> f32;
  MaskLoop<BFloat16> bf16;
};

struct MaskKernels {
  MaskLoops transposable, rows;
};

WEFT_ISA_TABLE(MaskKernels)

}  // namespace weft::kernels::cpu
