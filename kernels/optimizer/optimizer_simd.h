#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/optimizer/optimizer.h"

namespace weft::kernels::cpu {

/// A stretch of one tensor.
struct UpdateSpan {
  float* parameter;
  const float* gradient;
  UpdateState state[3];  ///< Of f32 numbers.
  int64_t count;
};

/// What is done to a gradient before a rule sees it.
struct GradientFactors {
  float scale;
  float limit;
};

struct SgdFactors {
  GradientFactors gradient;
  float l2;       ///< Decay that is added to the gradient.
  float rate_in;  ///< On what enters the momentum.
  float momentum;
  float nesterov;  ///< momentum with Nesterov's look ahead, otherwise 0.
  float rate_out;  ///< On what leaves it.
};

struct AdamFactors {
  GradientFactors gradient;
  float beta1;
  float beta2;
  float l2;              ///< Decay that is added to the gradient (Adam) or the direction (LAMB).
  float decay;           ///< 1 - learning_rate * weight_decay
  float mean_scale;      ///< learning_rate / (1 - beta1^step); of LAMB without learning_rate
  float variance_scale;  ///< 1 / sqrt(1 - beta2^step)
  float epsilon;
};

struct LionFactors {
  GradientFactors gradient;
  float beta1;
  float beta2;
  float decay;
  float rate;
};

struct ScheduleFreeFactors {
  GradientFactors gradient;
  float beta1;
  float beta2;
  float epsilon;
  float rate;
  float decay;  ///< rate * weight_decay
  float average_weight;
};

struct MomentumFactors {
  GradientFactors gradient;
  float momentum;
  bool nesterov;
};

struct OptimizerKernels {
  void (*sgd)(const SgdFactors& factors, const UpdateSpan& span);
  void (*sgd_momentum)(const SgdFactors& factors, const UpdateSpan& span);
  void (*adam)(const AdamFactors& factors, const UpdateSpan& span);
  /// The same with second moments that stay as they are.
  void (*adam_kept)(const AdamFactors& factors, const UpdateSpan& span);
  /// Both moments of LAMB, and the direction r into `direction`.
  void (*lamb_moments)(const AdamFactors& factors, const UpdateSpan& span, float* direction);
  /// parameter -= rate * r, with r made again of the moments.
  void (*lamb_step)(const AdamFactors& factors, const UpdateSpan& span, float rate);
  void (*lion)(const LionFactors& factors, const UpdateSpan& span);
  void (*schedule_free)(const ScheduleFreeFactors& factors, const UpdateSpan& span);
  void (*momentum)(const MomentumFactors& factors, const UpdateSpan& span);
};

WEFT_ISA_TABLE(OptimizerKernels)

}  // namespace weft::kernels::cpu
