#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "common/dtype.h"

namespace weft::kernels::cuda {

/// StochasticRound (kernels/stochastic_round) of one element with its random word: the same bits as
/// on the CPU.
__device__ __forceinline__ BFloat16 RoundStochastically(float value, uint32_t word) {
  constexpr uint32_t kInfinity = 0x7f800000u, kLargest = 0x7f7f0000u;
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  uint32_t rounded = magnitude + (word >> 16);
  if (rounded >= kInfinity) rounded = kLargest;
  // Infinity stays, and a NaN gets a bit that survives.
  if (magnitude >= kInfinity) rounded = magnitude > kInfinity ? magnitude | 0x400000u : magnitude;
  return {static_cast<uint16_t>((rounded | (bits & 0x80000000u)) >> 16)};
}

}  // namespace weft::kernels::cuda
