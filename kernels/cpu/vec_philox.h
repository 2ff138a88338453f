#pragma once

#include "common/rng.h"
#include "kernels/cpu/vec.h"

/// Counter-based random words, kLanes blocks at a time.
namespace weft::kernels::cpu::WEFT_ISA {

/// Products of the even 32-bit lanes, as 64 bits.
WEFT_INLINE VecU MultiplyEven(VecU a, VecU b) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecU>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecU>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  typedef uint64_t VecW __attribute__((vector_size(kVecBytes)));
  return reinterpret_cast<VecU>((reinterpret_cast<VecW>(a) & 0xffffffffu) *
                                (reinterpret_cast<VecW>(b) & 0xffffffffu));
#endif
}

WEFT_INLINE VecU ShiftDown32(VecU v) {
  typedef uint64_t VecW __attribute__((vector_size(kVecBytes)));
  return reinterpret_cast<VecU>(reinterpret_cast<VecW>(v) >> 32);
}

WEFT_INLINE VecU ShiftUp32(VecU v) {
  typedef uint64_t VecW __attribute__((vector_size(kVecBytes)));
  return reinterpret_cast<VecU>(reinterpret_cast<VecW>(v) << 32);
}

/// high:low = a * factor, lane by lane.
WEFT_INLINE void MultiplyWide(VecU a, uint32_t factor, VecU& high, VecU& low) {
  VecI even;
  for (int i = 0; i < kLanes; ++i) even[i] = i % 2 == 0 ? -1 : 0;
  VecU b = VecU{} + factor;
  VecU evens = MultiplyEven(a, b), odds = MultiplyEven(ShiftDown32(a), b);
  high = even ? ShiftDown32(evens) : odds;
  low = even ? evens : ShiftUp32(odds);
}

/// Blocks of the stream (see common/rng.h), one a lane, the lower and the upper halves of whose
/// numbers are given: words[i] has word i of each.
WEFT_INLINE void PhiloxBlocks(const PhiloxKey& key, VecU low, VecU high, VecU (&words)[4]) {
  VecU c0 = low, c1 = high;
  VecU c2 = VecU{} + key.step, c3 = VecU{} + key.site;
  auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    VecU high0, low0, high1, low1;
    MultiplyWide(c0, 0xD2511F53, high0, low0);
    MultiplyWide(c2, 0xCD9E8D57, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

/// Words of kLanes blocks from `block` on, in the order of the stream: words[0] has the first
/// kLanes of them.
WEFT_INLINE void PhiloxWords(const PhiloxKey& key, uint64_t block, VecU (&words)[4]) {
  VecU low, high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = static_cast<uint32_t>(block + i);
    high[i] = static_cast<uint32_t>((block + i) >> 32);
  }
  PhiloxBlocks(key, low, high, words);
  auto f0 = reinterpret_cast<VecF>(words[0]), f1 = reinterpret_cast<VecF>(words[1]);
  auto f2 = reinterpret_cast<VecF>(words[2]), f3 = reinterpret_cast<VecF>(words[3]);
  VecF even_low = InterleaveLow(f0, f2), even_high = InterleaveHigh(f0, f2);
  VecF odd_low = InterleaveLow(f1, f3), odd_high = InterleaveHigh(f1, f3);
  words[0] = reinterpret_cast<VecU>(InterleaveLow(even_low, odd_low));
  words[1] = reinterpret_cast<VecU>(InterleaveHigh(even_low, odd_low));
  words[2] = reinterpret_cast<VecU>(InterleaveLow(even_high, odd_high));
  words[3] = reinterpret_cast<VecU>(InterleaveHigh(even_high, odd_high));
}

}  // namespace weft::kernels::cpu::WEFT_ISA
