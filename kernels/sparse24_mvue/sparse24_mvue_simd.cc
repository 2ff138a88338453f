#include "kernels/sparse24_mvue/sparse24_mvue_simd.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_philox.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Below this sum of magnitudes a group becomes zeros: its quotients would not be normal numbers.
constexpr float kLeastSum = 0x1.0p-100f;

// Uniform in [0, 1), as UniformFloat.
WEFT_INLINE VecF Uniform(VecU words) {
  return __builtin_convertvector(reinterpret_cast<VecI>(words >> 8), VecF) * 0x1.0p-24f;
}

// A product in its own rounding: what is added to it is not fused with it. The same bits on every
// instruction set and device.
WEFT_INLINE VecF Rounded(VecF product) {
#if defined(__AVX512F__)
  asm("" : "+v"(product));
#elif defined(__FMA__)
  asm("" : "+x"(product));
#endif
  return product;
}

// One group a lane: element r in x[r].
struct Groups {
  VecF x[4];
};

struct Sums {
  VecF a[4];  // Magnitudes, ...
  VecF sum;   // ... and their sum.
};

WEFT_INLINE Sums SumsOf(const Groups& groups) {
  Sums s;
  for (int i = 0; i < 4; ++i) s.a[i] = Abs(groups.x[i]);
  s.sum = (s.a[0] + s.a[1]) + (s.a[2] + s.a[3]);
  return s;
}

// The first element at which the running sum of `a` passes `point`; the last one of those that are
// not 0 where rounding leaves it beyond all.
struct Chosen {
  VecI is[4];
};
WEFT_INLINE Chosen PassedBy(const VecF (&a)[4], VecF point) {
  Chosen chosen;
  // An element at which the sum passes a point that is not negative is not 0.
  VecI passed = {};
  VecF running = {};
  for (int i = 0; i < 4; ++i) {
    running += a[i];
    const VecI passes = running > point;
    chosen.is[i] = passes & ~passed;
    passed = passes;
  }
  VecI missing = ~passed;
  for (int i = 3; i >= 0; --i) {
    const VecI fallback = missing & (a[i] > 0.0f);
    chosen.is[i] |= fallback;
    missing &= ~fallback;
  }
  return chosen;
}

// Draws without putting back. An element is kept with probability
//   p_i = t_i + a_i (K - k_i),  t_i = a_i / s,  k_i = t_i / (s - a_i),  K = sum of k:
// that of being first, and that of coming after each other first one.
WEFT_INLINE void DrawSequential(Groups& groups, const VecU (&words)[4]) {
  Sums s = SumsOf(groups);
  // A share of the sum for each, so that there always are two to draw; more than rounding takes.
  const VecF share = s.sum * 0x1.0p-22f;
  for (int i = 0; i < 4; ++i) s.a[i] += share;
  s.sum = (s.a[0] + s.a[1]) + (s.a[2] + s.a[3]);
  const Chosen first = PassedBy(s.a, Uniform(words[0]) * s.sum);
  VecF rest[4], first_magnitude = {};
  for (int i = 0; i < 4; ++i) {
    rest[i] = first.is[i] ? VecF{} : s.a[i];
    first_magnitude = first.is[i] ? s.a[i] : first_magnitude;
  }
  const VecF rest_sum = (rest[0] + rest[1]) + (rest[2] + rest[3]);
  const Chosen second = PassedBy(rest, Uniform(words[1]) * rest_sum);
  VecF t[4], k[4];
  for (int i = 0; i < 4; ++i) {
    t[i] = s.a[i] / s.sum;
    // The others by themselves: s - a_i would lose them next to a large a_i.
    const VecF others = (s.a[(i + 1) % 4] + s.a[(i + 2) % 4]) + s.a[(i + 3) % 4];
    k[i] = t[i] / others;
  }
  for (int i = 0; i < 4; ++i) {
    const VecF other_k = (k[(i + 1) % 4] + k[(i + 2) % 4]) + k[(i + 3) % 4];
    const VecF p = t[i] + Rounded(s.a[i] * other_k);
    groups.x[i] = (first.is[i] | second.is[i]) ? groups.x[i] / p : VecF{};
  }
}

// p_i = 2 a_i / s; where that passes 1 for the largest, it is always kept, and the others share the
// second place. Those are kept in whose part of [0, 2) one of u and u + 1 lies.
WEFT_INLINE void DrawMinimumVariance(Groups& groups, VecU word) {
  const Sums s = SumsOf(groups);
  const VecF largest = Max(Max(s.a[0], s.a[1]), Max(s.a[2], s.a[3]));
  VecF rest[4], taken = {};
  VecI is_taken[4], none = VecI{} - 1;
  for (int i = 0; i < 4; ++i) {
    is_taken[i] = (s.a[i] == largest) & (2.0f * largest > s.sum) & none;
    none &= ~is_taken[i];
    rest[i] = is_taken[i] ? VecF{} : s.a[i];
    taken = is_taken[i] ? Set(1.0f) : taken;
  }
  const VecF rest_sum = (rest[0] + rest[1]) + (rest[2] + rest[3]);
  // Points of the running sum of `rest`: one, or two half of it apart.
  const VecF spacing = taken > 0.0f ? rest_sum : 0.5f * rest_sum;
  const VecF point = Rounded(Uniform(word) * spacing);
  const Chosen one = PassedBy(rest, point);
  const Chosen two = PassedBy(rest, point + spacing);
  VecF of_one = {}, of_two = {};
  for (int i = 0; i < 4; ++i) {
    of_one = one.is[i] ? rest[i] : of_one;
    of_two = two.is[i] ? rest[i] : of_two;
  }
  const VecF one_scale = spacing / of_one, two_scale = spacing / of_two;
  for (int i = 0; i < 4; ++i) {
    const VecI second = two.is[i] & ~(taken > 0.0f);
    const VecF drawn = one.is[i] ? groups.x[i] * one_scale : groups.x[i] * two_scale;
    groups.x[i] = is_taken[i] ? groups.x[i] : (one.is[i] | second) ? drawn : VecF{};
  }
}

// 0 of zeros, and a NaN of what is not finite.
WEFT_INLINE void KeepFinite(Groups& groups, VecF sum) {
  const VecF finite = sum * 0.0f;
  for (VecF& x : groups.x) x = (sum < kLeastSum ? VecF{} : x) + finite;
}

template <class T>
WEFT_INLINE Groups LoadGroups(const T* x, int64_t stride, int64_t columns) {
  Groups groups;
  for (int r = 0; r < 4; ++r) groups.x[r] = LoadUpTo(x + r * stride, columns);
  return groups;
}

template <class T>
WEFT_INLINE void StoreGroups(T* y, int64_t stride, const Groups& groups, int64_t columns) {
  for (int r = 0; r < 4; ++r) StoreUpTo(y + r * stride, groups.x[r], columns);
}

// A block of words for each group.
template <class T>
void RunSequential(const MvueStream& stream, const T* x, int64_t x_stride, T* y, int64_t y_stride,
                   int64_t columns) {
  const auto first = static_cast<uint64_t>(stream.group * stream.all_columns + stream.first_column);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t here = columns - c;
    Groups groups = LoadGroups(x + c, x_stride, here);
    const VecF sum = SumsOf(groups).sum;
    VecU low, high, words[4];
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t block = first + static_cast<uint64_t>(c + i);
      low[i] = static_cast<uint32_t>(block);
      high[i] = static_cast<uint32_t>(block >> 32);
    }
    PhiloxBlocks(stream.key, low, high, words);
    DrawSequential(groups, words);
    KeepFinite(groups, sum);
    StoreGroups(y + c, y_stride, groups, here);
  }
}

// Four columns share a block.
template <class T>
void RunMinimumVariance(const MvueStream& stream, const T* x, int64_t x_stride, T* y,
                        int64_t y_stride, int64_t columns) {
  const int64_t blocks = (stream.all_columns + 3) / 4;
  const int64_t before = stream.first_column % 4;  // Columns of the first block that are not here.
  auto block = static_cast<uint64_t>(stream.group * blocks + stream.first_column / 4);
  for (int64_t c = -before; c < columns; c += 4 * kLanes, block += kLanes) {
    VecU words[4];
    PhiloxWords(stream.key, block, words);
    alignas(kVecBytes) uint32_t in_order[5 * kLanes] = {};
    std::memcpy(in_order, words, sizeof words);
    for (int part = 0; part < 4; ++part) {
      const int64_t begin = std::max<int64_t>(c + part * kLanes, 0);
      const int64_t here = std::min(columns, c + (part + 1) * kLanes) - begin;
      if (here <= 0) continue;
      Groups groups = LoadGroups(x + begin, x_stride, here);
      const VecF sum = SumsOf(groups).sum;
      VecU word;
      std::memcpy(&word, in_order + (begin - c), sizeof word);
      DrawMinimumVariance(groups, word);
      KeepFinite(groups, sum);
      StoreGroups(y + begin, y_stride, groups, here);
    }
  }
}

template <class T>
void Run(const MvueStream& stream, const T* x, int64_t x_stride, T* y, int64_t y_stride,
         int64_t columns) {
  (stream.draw == MvueDraw::kSequential
       ? RunSequential<T>
       : RunMinimumVariance<T>)(stream, x, x_stride, y, y_stride, columns);
}

}  // namespace

const MvueKernels kMvueKernels = {.f32 = {Run<float>}, .bf16 = {Run<BFloat16>}, .f16 = {Run<Half>}};

}  // namespace weft::kernels::cpu::WEFT_ISA
