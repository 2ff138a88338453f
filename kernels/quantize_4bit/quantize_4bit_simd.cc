#include "kernels/quantize_4bit/quantize_4bit_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

/// The codes of kLanes elements, which `bytes` holds from its lowest byte on.
WEFT_INLINE VecI Codes(uint64_t bytes) {
#if defined(__AVX512F__)
  const __m512i shifts =
      _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
  const __m512i words = _mm512_inserti64x4(_mm512_set1_epi32(static_cast<int>(bytes)),
                                           _mm256_set1_epi32(static_cast<int>(bytes >> 32)), 1);
  return reinterpret_cast<VecI>(
      _mm512_and_epi32(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi32(15)));
#elif defined(__AVX2__)
  const __m256i shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  const __m256i words = _mm256_set1_epi32(static_cast<int>(bytes));
  return reinterpret_cast<VecI>(
      _mm256_and_si256(_mm256_srlv_epi32(words, shifts), _mm256_set1_epi32(15)));
#else
  const auto low = static_cast<int32_t>(bytes & 0xffff);
  return VecI{low >> 4 & 15, low & 15, low >> 12 & 15, low >> 8 & 15};
#endif
}

/// values[code] of each lane.
WEFT_INLINE VecF LookUp(const float* values, VecI codes) {
#if defined(__AVX512F__)
  return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(codes), _mm512_loadu_ps(values));
#elif defined(__AVX2__)
  const auto index = reinterpret_cast<__m256i>(codes);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + 8), index);
  // The sign of a lane, to which bit 3 of its code is moved, picks the half.
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
#else
  VecF found;
  for (int i = 0; i < kLanes; ++i) found[i] = values[codes[i]];
  return found;
#endif
}

template <class T>
void Dequantize(const uint8_t* codes, const float* values, float scale, T* y, int64_t count) {
  float scaled[16];
  for (int i = 0; i < 16; ++i) scaled[i] = values[i] * scale;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    uint64_t bytes = 0;
    const int64_t wanted = left >= kLanes ? kLanes / 2 : (left + 1) / 2;
    if (wanted == kLanes / 2) {
      __builtin_memcpy(&bytes, codes + i / 2, kLanes / 2);
    } else {
      __builtin_memcpy(&bytes, codes + i / 2, static_cast<size_t>(wanted));
    }
    StoreUpTo(y + i, LookUp(scaled, Codes(bytes)), left);
  }
}

}  // namespace

const FourBitKernels kFourBitKernels = {
    .f32 = {Dequantize<float>}, .bf16 = {Dequantize<BFloat16>}, .f16 = {Dequantize<Half>}};

}  // namespace weft::kernels::cpu::WEFT_ISA
