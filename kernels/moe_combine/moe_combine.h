#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// y[t] = sum over i of weights[t, i] * x[places[t, i]], in this order, in f32; a place of -1 has
/// no term. Of a mixture of experts: x are their results, as MoeDispatch (kernels/moe_route) has
/// ordered them. Without weights, gradients of what went to the experts become those of tokens.
struct MoeCombineArgs {
  TensorView x;        ///< [n, width] f32, bf16 or f16
  TensorView places;   ///< [tokens, k] i32, each in [-1, n)
  TensorView weights;  ///< [tokens, k] f32; none: 1
  TensorView y;        ///< [tokens, width], the type of x
};

/// dx[places[t, i]] = weights[t, i] * dy[t] and dweights[t, i] = dy[t] . x[places[t, i]], which is
/// 0 for a place of -1.
struct MoeCombineBackwardArgs {
  TensorView dy;        ///< [tokens, width] f32, bf16 or f16
  TensorView x;         ///< [n, width], the same type
  TensorView places;    ///< [tokens, k] i32, each in [-1, n), those that are not -1 distinct
  TensorView weights;   ///< [tokens, k] f32
  TensorView dx;        ///< Like x, which it may be; rows that no place names stay as they are.
  TensorView dweights;  ///< [tokens, k] f32
};

/// Places and weights are contiguous. A place out of range is kInvalid and named; on a CUDA device,
/// which cannot stop, its term is NaN and its gradients are nowhere.
WEFT_DEVICE_OP(MoeCombine, MoeCombineArgs)
WEFT_DEVICE_OP(MoeCombineBackward, MoeCombineBackwardArgs)

}  // namespace weft::kernels
