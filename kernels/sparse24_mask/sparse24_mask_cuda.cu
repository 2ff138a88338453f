#include <algorithm>
#include <utility>

#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/four.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mask/sparse24_mask_check.h"
#include "kernels/sparse24_mask/sparse24_patterns.h"

namespace weft::kernels::cuda {
namespace {

// Magnitudes of a block: row r, column c.
using Magnitudes = float[4][4];

struct Best {
  float sum = -1;
  uint32_t bits = 0;
};

// Compares pattern kIndex with the best of those before it. Sums are taken in the order that
// sparse24_mask_simd.cc has, so that they have the same bits.
template <size_t kIndex>
__device__ __forceinline__ void TryPattern(const float (&pairs)[4][kPairs], Best& best) {
  constexpr TransposablePattern kPattern = kTransposable.of[kIndex];
  const float sum = (pairs[0][kPattern.pair[0]] + pairs[1][kPattern.pair[1]]) +
                    (pairs[2][kPattern.pair[2]] + pairs[3][kPattern.pair[3]]);
  if (sum > best.sum) best = {sum, kPattern.bits};
}

template <size_t... kIndices>
__device__ __forceinline__ uint32_t BestOf(const float (&pairs)[4][kPairs],
                                           std::index_sequence<kIndices...> /*of patterns*/) {
  Best best;
  (TryPattern<kIndices>(pairs, best), ...);
  return best.bits;
}

template <size_t... kPair>
__device__ __forceinline__ void SumPairs(const float (&row)[4], float (&pairs)[kPairs],
                                         std::index_sequence<kPair...> /*of pairs*/) {
  ((pairs[kPair] = row[std::integral_constant<int, kKeptPairs[kPair].first>::value] +
                   row[std::integral_constant<int, kKeptPairs[kPair].second>::value]),
   ...);
}

struct BestTransposable {
  static __device__ __forceinline__ uint32_t Of(const Magnitudes& m) {
    float pairs[4][kPairs];
#pragma unroll
    for (int r = 0; r < 4; ++r) SumPairs(m[r], pairs[r], std::make_index_sequence<kPairs>());
    return BestOf(pairs, std::make_index_sequence<kTransposablePatterns>());
  }
};

// An element is kept when fewer than two of its row are larger, or equal and before it.
struct BestOfRows {
  static __device__ __forceinline__ uint32_t Of(const Magnitudes& m) {
    uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        int before = 0;
#pragma unroll
        for (int other = 0; other < 4; ++other) {
          if (other == c) continue;
          const float mine = m[r][c], its = m[r][other];
          before += other < c ? its >= mine : its > mine;
        }
        if (before < 2) bits |= 1u << (4 * r + c);
      }
    }
    return bits;
  }
};

// A block of threads finds a row of the mask, a thread some of its blocks of 4 x 4.
template <class Rule, class T>
__global__ void __launch_bounds__(kBlockThreads)
    FindMasks(StridedRows<const T> weight, bool wide, int64_t blocks, uint16_t* mask,
              int32_t* flips) {
  const int64_t row = blockIdx.x;
  uint16_t* to = mask + row * blocks;
  int changed[1] = {0};
  for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) {
    Magnitudes m;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      LoadFour(weight.At(4 * row + r, 4 * i), 4, wide, m[r]);
      // 0 of a NaN.
#pragma unroll
      for (int c = 0; c < 4; ++c) m[r][c] = fmaxf(fabsf(m[r][c]), 0.0f);
    }
    const uint32_t bits = Rule::Of(m);
    if (flips != nullptr) changed[0] += __popc(bits ^ to[i]);
    to[i] = static_cast<uint16_t>(bits);
  }
  if (flips == nullptr) return;
  BlockSum(changed);
  if (threadIdx.x == 0) flips[row] = changed[0];
}

template <class Rule>
Status LaunchMasks(const Stream& stream, std::string_view op, const TensorView& weight,
                   const TensorView& mask, const TensorView& flips) {
  const int64_t rows = mask.shape[0], blocks = mask.shape[1];
  const unsigned threads =
      std::min<unsigned>(std::max(CeilDiv(blocks, kWarp), 1u) * kWarp, kBlockThreads);
  const auto launch = [&]<class T>() {
    // Four elements of bf16 are aligned to 8 bytes then.
    return Launch(stream, op, {.grid = {static_cast<unsigned>(rows)}, .block = {threads}},
                  FindMasks<Rule, T>, RowsOf<const T>(weight), RowsAligned16(weight), blocks,
                  mask.As<uint16_t>(), flips ? flips.As<int32_t>() : nullptr);
  };
  return weight.dtype == DType::kF32 ? launch.template operator()<float>()
                                     : launch.template operator()<BFloat16>();
}

// A thread shrinks four neighbours.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    Shrink(StridedRows<const T> weight, StridedRows<float> y, int64_t groups, int64_t count,
           float scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / groups, column = i % groups * 4;
  float w[4], a[4];
  LoadFour(weight.At(row, column), 4, false, w);
#pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = fmaxf(fabsf(w[k]), 0.0f);
  const float threshold = fminf(fmaxf(fminf(a[0], a[1]), fminf(a[2], a[3])),
                                fminf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3])));
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    y.At(row, column)[k] = a[k] > threshold ? scale * copysignf(a[k] - threshold, w[k]) : 0.0f;
  }
}

}  // namespace

Status SoftThreshold(const Stream& stream, const SoftThresholdArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSoftThreshold(stream, args));
  const int64_t groups = args.weight.shape[1] / 4, count = args.weight.shape[0] * groups;
  const auto launch = [&]<class T>() {
    return Launch(stream, "SoftThreshold",
                  {.grid = {CeilDiv(count, kBlockThreads)}, .block = {kBlockThreads}}, Shrink<T>,
                  RowsOf<const T>(args.weight), RowsOf<float>(args.y), groups, count, args.scale);
  };
  return args.weight.dtype == DType::kF32 ? launch.template operator()<float>()
                                          : launch.template operator()<BFloat16>();
}

Status TransposableMask(const Stream& stream, const TransposableMaskArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMask(stream, "TransposableMask", args.weight, args.mask, args.flips));
  return LaunchMasks<BestTransposable>(stream, "TransposableMask", args.weight, args.mask,
                                       args.flips);
}

Status RowMask(const Stream& stream, const RowMaskArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMask(stream, "RowMask", args.weight, args.mask, args.flips));
  return LaunchMasks<BestOfRows>(stream, "RowMask", args.weight, args.mask, args.flips);
}

}  // namespace weft::kernels::cuda
