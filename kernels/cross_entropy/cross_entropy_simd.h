#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"

namespace weft::kernels::cpu {

template <class T>
struct CrossEntropyRow {
  /// Loss of one row of logits against column `target`. With a `scratch` of `vocabulary` floats the
  /// row becomes its gradient times `grad_scale`, zero from `vocabulary` to `columns`.
  float (*run)(T* logits, int64_t columns, int64_t vocabulary, int64_t target, float grad_scale,
               float* scratch);

  /// The largest of `count` logits, and the sum of exp(logit - largest).
  void (*measure)(const T* logits, int64_t count, float* largest, float* sum);

  /// logits = factor * exp(logits - largest) for the first `count` columns, 0 for the rest.
  void (*softmax)(T* logits, int64_t columns, int64_t count, float largest, float factor);
};
using CrossEntropyKernels = FloatTypes<CrossEntropyRow>;

WEFT_ISA_TABLE(CrossEntropyKernels)

}  // namespace weft::kernels::cpu
