#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

struct StochasticRoundKernels {
  /// `block` is the Philox block of element 0.
  void (*run)(const PhiloxKey& key, uint64_t block, const float* x, BFloat16* y, int64_t count);
};

WEFT_ISA_TABLE(StochasticRoundKernels)

}  // namespace weft::kernels::cpu
