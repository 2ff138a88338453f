#include "kernels/stochastic_round/stochastic_round_simd.h"

#include "kernels/cpu/vec_philox.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// An f32 whose lower 16 bits are zero.
WEFT_INLINE VecF Round(VecF x, VecU word) {
  constexpr uint32_t kInfinity = 0x7f800000u, kLargest = 0x7f7f0000u;
  auto bits = reinterpret_cast<VecU>(x);
  VecU magnitude = bits & 0x7fffffffu;
  VecU rounded = magnitude + (word >> 16);
  rounded = rounded >= kInfinity ? VecU{} + kLargest : rounded;
  // Infinity stays, and a NaN gets a bit that survives.
  VecU special = magnitude > kInfinity ? magnitude | 0x400000u : magnitude;
  rounded = magnitude >= kInfinity ? special : rounded;
  return reinterpret_cast<VecF>((rounded | (bits & 0x80000000u)) & 0xffff0000u);
}

void Run(const PhiloxKey& key, uint64_t block, const float* x, BFloat16* y, int64_t count) {
  VecU words[4];
  for (int64_t i = 0; i < count; i += 4 * kLanes, block += kLanes) {
    PhiloxWords(key, block, words);
    for (int part = 0; part < 4; ++part) {
      int64_t at = i + part * kLanes, left = count - at;
      if (left > 0) StoreUpTo(y + at, Round(LoadUpTo(x + at, left), words[part]), left);
    }
  }
}

}  // namespace

const StochasticRoundKernels kStochasticRoundKernels = {.run = Run};

}  // namespace weft::kernels::cpu::WEFT_ISA
