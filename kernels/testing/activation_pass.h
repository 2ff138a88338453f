#pragma once

#include "kernels/activation/activation.h"
#include "kernels/activation/product_activation.h"
#include "kernels/swiglu/swiglu.h"

namespace weft::kernels::testing {

/// The pass of `activation` by itself, which products that take it must have the bits of: y of x; a
/// gated one's gate and up are the halves of the columns of x.
inline Status ActivationPass(const Stream& stream, ProductActivation activation,
                             const TensorView& x, const TensorView& y) {
  if (IsGated(activation)) {
    const GatedColumns at = GatedColumnsOf(x);
    return SwiGluForward(stream, {at.gate, at.up, y, GateOf(activation)});
  }
  if (activation == ProductActivation::kSquaredRelu) return SquaredReluForward(stream, {x, y});
  return GeluForward(stream, {x, y, GeluFormOf(activation)});
}

/// Its gradient by itself, in place in dx: there (a gated one's first columns) is that of the
/// result. y is the result again.
inline Status ActivationBackwardPass(const Stream& stream, ProductActivation activation,
                                     const TensorView& dx, const TensorView& before,
                                     const TensorView& y) {
  if (IsGated(activation)) {
    const GatedColumns to = GatedColumnsOf(dx), at = GatedColumnsOf(before);
    return SwiGluBackward(stream, {.dy = to.gate,
                                   .gate = at.gate,
                                   .up = at.up,
                                   .dgate = to.gate,
                                   .dup = to.up,
                                   .y = y,
                                   .function = GateOf(activation)});
  }
  if (activation == ProductActivation::kSquaredRelu) {
    return SquaredReluBackward(stream, {dx, before, dx, y});
  }
  return GeluBackward(stream, {dx, before, dx, y, GeluFormOf(activation)});
}

}  // namespace weft::kernels::testing
