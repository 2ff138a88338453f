#pragma once

#include "kernels/optimizer/optimizer.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Decay of those elements of W [rows, columns] that a 2:4 mask leaves out, in successive elements
/// of W from `first` on.
struct MaskedDecayArgs {
  TensorView weight;    ///< [count] f32 or bf16, contiguous
  TensorView gradient;  ///< [count] f32, contiguous
  TensorView mask;    ///< [rows / 4, columns / 4] u16 of all of W, as kernels/sparse24_mask has it
  int64_t first = 0;  ///< Element of W with which weight begins.
  float decay = 0;
  /// The gate of the update that the gradient is meant for. Its factor multiplies the gradient
  /// later on.
  UpdateGate gate = {};
};

/// As above, without a gradient.
struct MaskedWeightDecayArgs {
  TensorView weight;  ///< [count] f32, contiguous
  TensorView mask;
  int64_t first = 0;
  float decay = 0;
  StepValue<float> learning_rate = 0.0f;
  UpdateGate gate = {};
};

/// MaskedDecay: gradient += decay (1 - m) W / factor, so that the rule of the optimizer sees the
/// decay (Hu et al. 2024, arXiv 2404.01847, section 4.1). Nothing where the factor is 0.
/// MaskedWeightDecay: W -= learning_rate decay (1 - m) W, besides the rule (SR-STE; Zhou et al.
/// 2021, arXiv 2102.04010). Both leave all as it is when the gate says that no update is made.
/// kInvalid when arguments do not fit.
WEFT_DEVICE_OP(MaskedDecay, MaskedDecayArgs)
WEFT_DEVICE_OP(MaskedWeightDecay, MaskedWeightDecayArgs)

}  // namespace weft::kernels
