#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

/// What all elements of a tensor share in one AdamW step.
struct AdamWFactors {
  float gradient_scale;
  float beta1;
  float beta2;
  float decay;           ///< 1 - learning_rate * weight_decay
  float step_size;       ///< learning_rate / (1 - beta1^step)
  float variance_scale;  ///< 1 / sqrt(1 - beta2^step)
  float epsilon;
};

struct AdamWKernels {
  void (*update)(const AdamWFactors& factors, float* parameter, const float* gradient,
                 float* first_moment, float* second_moment, int64_t count);
};

WEFT_ISA_TABLE(AdamWKernels)

}  // namespace weft::kernels::cpu
