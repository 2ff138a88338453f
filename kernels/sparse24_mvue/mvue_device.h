#pragma once

// The draws of sparse24_mvue_simd.cc for one group, with the same bits: where a product is added to
// something the two are not fused, on any device.

#include <cstdint>

#include "common/rng.h"
#include "kernels/cuda/vector.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/step_value.h"

namespace weft::kernels::cuda {

/// Below this sum of magnitudes a group becomes zeros: its quotients would not be normal numbers.
inline constexpr float kLeastMvueSum = 0x1.0p-100f;

/// What S(x) draws its numbers from: MvueArgs without the tensors.
struct MvueNumbers {
  MvueDraw draw;
  PhiloxKey key;
  StepValue<uint32_t> step;
  int64_t first_group, first_column;
  int64_t columns;  ///< MvueArgs::all_columns

  __device__ __forceinline__ Philox4 Block(int64_t block) const {
    return Philox({key.seed, step.Get(), key.site}, static_cast<uint64_t>(block));
  }
};

/// The words of group `group` of neighbouring columns, from `column` of the part on.
struct MvueWords {
  const MvueNumbers& numbers;
  int64_t group, column;
  Philox4 block = {};

  /// Draws of column `c`, asked for in their order: two of kSequential, one of kMinimumVariance.
  __device__ __forceinline__ uint2 Of(int c) {
    const int64_t g = numbers.first_group + group, at = numbers.first_column + column + c;
    if (numbers.draw == MvueDraw::kSequential) {
      block = numbers.Block(g * numbers.columns + at);
      return {block.v[0], block.v[1]};
    }
    const auto word = static_cast<int>(at % 4);
    if (c == 0 || word == 0) block = numbers.Block(g * ((numbers.columns + 3) / 4) + at / 4);
    // An index would put them into memory.
    const uint32_t low = word % 2 == 0 ? block.v[0] : block.v[1];
    const uint32_t high = word % 2 == 0 ? block.v[2] : block.v[3];
    return {word < 2 ? low : high, 0};
  }
};

/// For an x of this many columns.
inline MvueNumbers MvueNumbersOf(const MvueArgs& args, int64_t columns) {
  const int64_t all = args.all_columns > 0 ? args.all_columns : columns;
  return {args.draw,          args.key,          {args.key.step, args.step},
          args.first_row / 4, args.first_column, all};
}

/// The first element at which the running sum of `a` passes `point`; the last one of those that are
/// not 0 where rounding leaves it beyond all. None, which is 4, where all are 0.
__device__ __forceinline__ int FirstPassing(const float (&a)[4], float point) {
  int chosen = 4, last = 4;
  float running = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    running += a[i];
    if (!(a[i] > 0.0f)) continue;
    last = i;
    if (chosen == 4 && running > point) chosen = i;
  }
  return chosen == 4 ? last : chosen;
}

__device__ __forceinline__ float SumOfGroup(const float (&a)[4]) {
  return (a[0] + a[1]) + (a[2] + a[3]);
}

__device__ __forceinline__ void DrawSequential(float (&x)[4], float (&a)[4], uint2 words) {
  const float share = SumOfGroup(a) * 0x1.0p-22f;
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] += share;
  const float sum = SumOfGroup(a);
  const int first = FirstPassing(a, UniformFloat(words.x) * sum);
  float rest[4], k[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = i == first ? 0.0f : a[i];
  const int second = FirstPassing(rest, UniformFloat(words.y) * SumOfGroup(rest));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    k[i] = a[i] / sum / ((a[(i + 1) % 4] + a[(i + 2) % 4]) + a[(i + 3) % 4]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float other_k = (k[(i + 1) % 4] + k[(i + 2) % 4]) + k[(i + 3) % 4];
    const float p = __fadd_rn(a[i] / sum, __fmul_rn(a[i], other_k));
    x[i] = i == first || i == second ? x[i] / p : 0.0f;
  }
}

__device__ __forceinline__ void DrawMinimumVariance(float (&x)[4], const float (&a)[4], float sum,
                                                    uint32_t word) {
  const float largest = fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3]));
  const int place = a[0] == largest ? 0 : a[1] == largest ? 1 : a[2] == largest ? 2 : 3;
  const int taken = 2.0f * largest > sum ? place : 4;
  // As FirstPassing: where a running sum passes a point that is not negative, its element is not 0.
  float rest[4], running[4];
  int last = 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest[i] = i == taken ? 0.0f : a[i];
    running[i] = i == 0 ? rest[0] : running[i - 1] + rest[i];
    if (rest[i] > 0.0f) last = i;
  }
  const auto passing = [&](float point) {
    const int before =
        static_cast<int>(running[0] <= point) + static_cast<int>(running[1] <= point) +
        static_cast<int>(running[2] <= point) + static_cast<int>(running[3] <= point);
    return before == 4 ? last : before;
  };
  const float rest_sum = SumOfGroup(rest), spacing = taken < 4 ? rest_sum : 0.5f * rest_sum;
  const float point = __fmul_rn(UniformFloat(word), spacing);
  const int one = passing(point), two = taken < 4 ? taken : passing(__fadd_rn(point, spacing));
  float of_one = 0, of_two = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    of_one = i == one ? rest[i] : of_one;
    of_two = i == two ? rest[i] : of_two;
  }
  const float one_scale = spacing / of_one, two_scale = spacing / of_two;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i != taken) x[i] = i == one ? x[i] * one_scale : i == two ? x[i] * two_scale : 0.0f;
  }
}

/// Replaces a group by its estimate.
__device__ __forceinline__ void DrawGroup(MvueDraw draw, uint2 words, float (&x)[4]) {
  float a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = fabsf(x[i]);
  const float sum = SumOfGroup(a);
  if (draw == MvueDraw::kSequential) {
    DrawSequential(x, a, words);
  } else {
    DrawMinimumVariance(x, a, sum, words.x);
  }
  // 0 of zeros, and a NaN of what is not finite.
  const float finite = sum * 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = (sum < kLeastMvueSum ? 0.0f : x[i]) + finite;
}

}  // namespace weft::kernels::cuda
