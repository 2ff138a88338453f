#include "kernels/sparse24_mask/sparse24_mask_simd.h"

#include "kernels/cpu/vec.h"
#include "kernels/sparse24_mask/sparse24_patterns.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// 128-bit parts of a vector, four numbers each.
constexpr int kQuads = kLanes / 4;

// Both take elements from the same quad of a and b.
WEFT_INLINE VecF UnpackLow(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_unpacklo_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_unpacklo_ps(a, b);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
WEFT_INLINE VecF UnpackHigh(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_unpackhi_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_unpackhi_ps(a, b);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Magnitudes of kLanes blocks: row r, column c of each, one a lane. Blocks are in the lanes in
// the order of BlockOf.
struct Magnitudes {
  VecF of[4][4];
};

// The block of a lane.
constexpr int BlockOf(int lane) {
  return lane % 4 * kQuads + lane / 4;
}

// 0 of a NaN.
WEFT_INLINE VecF Magnitude(VecF v) {
  return Max(Abs(v), VecF{});
}

template <class T>
WEFT_INLINE Magnitudes LoadMagnitudes(const T* weight, int64_t stride) {
  Magnitudes m;
  for (int r = 0; r < 4; ++r) {
    const T* row = weight + r * stride;
    const VecF v0 = Magnitude(Load(row)), v1 = Magnitude(Load(row + kLanes));
    const VecF v2 = Magnitude(Load(row + 2 * kLanes)), v3 = Magnitude(Load(row + 3 * kLanes));
    // Transposes 4 x 4 numbers in each quad.
    const VecF a = UnpackLow(v0, v2), b = UnpackLow(v1, v3);
    const VecF c = UnpackHigh(v0, v2), d = UnpackHigh(v1, v3);
    m.of[r][0] = UnpackLow(a, b);
    m.of[r][1] = UnpackHigh(a, b);
    m.of[r][2] = UnpackLow(c, d);
    m.of[r][3] = UnpackHigh(c, d);
  }
  return m;
}

WEFT_INLINE void StoreMasks(VecI bits, uint16_t* mask) {
  for (int lane = 0; lane < kLanes; ++lane) {
    mask[BlockOf(lane)] = static_cast<uint16_t>(bits[lane]);
  }
}

// Sums are taken in one order on every instruction set: (row 0 + row 1) + (row 2 + row 3), each of
// the two that its row keeps.
WEFT_INLINE VecI BestTransposable(const Magnitudes& m) {
  VecF pairs[4][kPairs];
  for (int r = 0; r < 4; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      pairs[r][p] = m.of[r][kKeptPairs[p].first] + m.of[r][kKeptPairs[p].second];
    }
  }
  VecF upper[kPairs][kPairs], lower[kPairs][kPairs];
  for (int p = 0; p < kPairs; ++p) {
    for (int q = 0; q < kPairs; ++q) {
      upper[p][q] = pairs[0][p] + pairs[1][q];
      lower[p][q] = pairs[2][p] + pairs[3][q];
    }
  }
  VecF best = Set(-1.0f);
  VecI bits = VecI{} + static_cast<int32_t>(kTransposable.of[0].bits);
#pragma GCC unroll 90
  for (int i = 0; i < kTransposablePatterns; ++i) {
    const TransposablePattern& pattern = kTransposable.of[i];
    const VecF sum =
        upper[pattern.pair[0]][pattern.pair[1]] + lower[pattern.pair[2]][pattern.pair[3]];
    const VecI larger = sum > best;
    best = larger ? sum : best;
    bits = larger ? VecI{} + static_cast<int32_t>(pattern.bits) : bits;
  }
  return bits;
}

// An element is kept when fewer than two of its row are larger, or equal and before it.
WEFT_INLINE VecI BestOfRows(const Magnitudes& m) {
  VecI bits = {};
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      VecI before = {};  // minus the number of those that come first
      for (int other = 0; other < 4; ++other) {
        if (other == c) continue;
        const VecF mine = m.of[r][c], its = m.of[r][other];
        before += other < c ? static_cast<VecI>(!(mine > its)) : static_cast<VecI>(its > mine);
      }
      bits |= before > -2 ? VecI{} + (1 << (4 * r + c)) : VecI{};
    }
  }
  return bits;
}

template <VecI (*kBest)(const Magnitudes&), class T>
void Masks(const T* weight, int64_t stride, int64_t blocks, uint16_t* mask) {
  for (; blocks >= kLanes; blocks -= kLanes, weight += 4 * kLanes, mask += kLanes) {
    StoreMasks(kBest(LoadMagnitudes(weight, stride)), mask);
  }
  if (blocks == 0) return;
  T rows[4][4 * kLanes] = {};
  for (int r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 4 * blocks; ++i) rows[r][i] = weight[r * stride + i];
  }
  uint16_t masks[kLanes];
  StoreMasks(kBest(LoadMagnitudes(rows[0], 4 * kLanes)), masks);
  for (int64_t i = 0; i < blocks; ++i) mask[i] = masks[i];
}

}  // namespace

const MaskKernels kMaskKernels = {
    .transposable = {Masks<BestTransposable, float>, Masks<BestTransposable, BFloat16>},
    .rows = {Masks<BestOfRows, float>, Masks<BestOfRows, BFloat16>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
