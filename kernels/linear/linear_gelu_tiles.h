#pragma once

#include "kernels/activation/gelu_vec.h"
#include "kernels/linear/linear_tiles.h"

/// Epilogues of products in bf16 with GELU, whose form `Function` is. For <op>_simd.cc files
/// compiled for AVX512_BF16.
namespace weft::kernels::cpu::avx512_bf16 {
namespace {

// Stores the values and their GELU, of the values as they were rounded.
template <class Function>
struct StoreAndGelu {
  static constexpr bool kReadsBefore = false;

  template <bool kStream>
  WEFT_INLINE static void Apply(const Result<BFloat16>& result, int64_t at, BFloat16* c, VecF low,
                                VecF high) {
    const auto bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    StoreLine<kStream>(c, bits);
    const Function first(FromBits(reinterpret_cast<VecH>(_mm512_castsi512_si256(bits))));
    const Function second(FromBits(reinterpret_cast<VecH>(_mm512_extracti64x4_epi64(bits, 1))));
    StoreRow<kStream>(result.active + at, first.Value(), second.Value());
  }
};

// Stores the values times the derivative of GELU, and where asked GELU itself.
template <class Function>
struct StoreGeluGradient {
  static constexpr bool kReadsBefore = true;

  template <bool kStream>
  WEFT_INLINE static void Apply(const Result<BFloat16>& result, int64_t at, BFloat16* c, VecF low,
                                VecF high) {
    const Function first(Load(result.before + at)), second(Load(result.before + at + kLanes));
    StoreRow<kStream>(c, low * first.Derivative(), high * second.Derivative());
    if (result.active == nullptr) return;
    StoreRow<kStream>(result.active + at, first.Value(), second.Value());
  }
};

}  // namespace
}  // namespace weft::kernels::cpu::avx512_bf16
