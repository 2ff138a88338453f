#pragma once

#include "kernels/tensor_view.h"

namespace weft::kernels::cpu {

/// y = x Wᵀ (+ bias) of one row x [1, in], with W [out, in] as it is stored, f32 or bf16: the
/// product of decoding one token, which takes as long as reading W does. Packing W for it would
/// take longer than the product. x and y have the compute type, or y is f32; sums are made in f32
/// and rounded once. `bias` is [out] or null.
void MultiplyRow(const TensorView& x, const TensorView& weight, const float* bias,
                 const TensorView& y);

}  // namespace weft::kernels::cpu
