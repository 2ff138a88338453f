#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// The masks of `blocks` neighbouring blocks, the first of which begins at `weight`.
template <class T>
using MaskLoop = void (*)(const T* weight, int64_t stride, int64_t blocks, uint16_t* mask);

struct MaskKernels {
  MaskLoop<float> transposable_f32, row_f32;
  MaskLoop<BFloat16> transposable_bf16, row_bf16;
};

WEFT_ISA_TABLE(MaskKernels)

}  // namespace weft::kernels::cpu
