#pragma once

#include <cstdint>
#include <limits>

#include "kernels/step_value.h"
#include "kernels/stream.h"

namespace weft::kernels {

// What a training step adds up, and decides by it, in memory of the stream's device: the host needs
// not wait for the loss before it enqueues the update.

/// *sum += the sum of the losses, in f64; *right += the rows whose prediction is their target. In a
/// fixed order.
struct AddLossesArgs {
  TensorView losses;            ///< [rows] f32
  TensorView predictions = {};  ///< [rows] i32, or none: nothing is right
  TensorView targets = {};      ///< [rows] i32; with predictions
  double* sum = nullptr;
  int64_t* right = nullptr;  ///< With predictions.
};

/// Whether an update is made, and what its gradients are multiplied by:
///   loss = loss_sum / targets;  norm = sqrt(square_sum) / loss_scale
///   made = non_finite == 0, and loss is finite and at most loss_limit
///   factor = (norm > clip_norm > 0 ? clip_norm / (norm + 1e-6) : 1) / loss_scale
/// in f64, as every IEEE machine computes it; `factor` is rounded to f32. The clipping is that of
/// Pascanu et al. 2013, arXiv 1211.5063, with PyTorch's guard against division by zero.
struct DecideUpdateArgs {
  const double* loss_sum = nullptr;
  const double* square_sum = nullptr;   ///< Of the gradients, as NormStat gives it,
  const int64_t* non_finite = nullptr;  ///< and this.
  StepValue<double> targets = 1.0;
  StepValue<double> loss_scale = 1.0;
  StepValue<double> loss_limit = std::numeric_limits<double>::infinity();
  double clip_norm = 0;  ///< 0: no clipping.
  float* factor = nullptr;
  int32_t* made = nullptr;
};

WEFT_DEVICE_OP(AddLosses, AddLossesArgs)
WEFT_DEVICE_OP(DecideUpdate, DecideUpdateArgs)

}  // namespace weft::kernels
