#pragma once

// The forward pass on the tensor cores (FlashAttention-2: Dao 2023, arXiv 2307.08691): a block
// takes a head and some queries of a sequence, each warp whole rows of them, and goes over their
// keys with the softmax brought up to date on the way.

#include "kernels/attention/attention_cuda_dropout.h"
#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/swizzled_tile.h"

namespace weft::kernels::cuda {

/// Blocks of all kernels of attention on the tensor cores.
inline constexpr int kTensorWarps = 4;
inline constexpr int kTensorThreads = kTensorWarps * kWarp;

/// Minus infinity in place of the scores whose row and column `seen` denies.
template <int kM, int kN, class Seen>
__device__ __forceinline__ void HideUnseen(Accumulators<kM, kN>& scores, const Seen& seen,
                                           int lane = static_cast<int>(threadIdx.x) % kWarp) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!seen(16 * m + AccumulatorRow(i, lane), 8 * n + AccumulatorColumn(i, lane))) {
          scores[m][n][i] = -INFINITY;
        }
      }
    }
  }
}

/// Multiplies the rows of `sums`.
template <int kM, int kN>
__device__ __forceinline__ void ScaleRows(Accumulators<kM, kN>& sums,
                                          const float (&factors)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factors[m][i / 2];
    }
  }
}

/// Running softmax of the rows of a warp, in base 2.
template <int kM>
struct RunningSoftmax {
  float maxima[kM][2];  ///< Of the scores; minus infinity before a key was seen.
  float sums[kM][2];    ///< This lane's part.

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      maxima[m][0] = maxima[m][1] = -INFINITY;
      sums[m][0] = sums[m][1] = 0;
    }
  }

  /// Turns more scores into weights. What was summed with earlier ones must be scaled by `factors`.
  template <int kN>
  __device__ __forceinline__ void Add(Accumulators<kM, kN>& scores, float log2_scale,
                                      float (&factors)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = maxima[m][half];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        largest = MaxOfFour(largest);
        // Not minus infinity, which would make NaN of keys that are not seen.
        const float shift = largest == -INFINITY ? 0.0f : largest * log2_scale;
        const float factor = ptx::Exp2(maxima[m][half] * log2_scale - shift);
        maxima[m][half] = largest;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = ptx::Exp2(scores[m][n][i] * log2_scale - shift);
            sum += scores[m][n][i];
          }
        }
        sums[m][half] = sums[m][half] * factor + sum;
        factors[m][half] = factor;
      }
    }
  }
};

/// kDim: columns of the tiles, zeros behind those of a head. Rows of a block: kTensorWarps * 16 kM.
template <class T, int kDim, int kM, int kKeys, bool kDrops>
__global__ void __launch_bounds__(kTensorThreads) AttentionForwardKernel(AttentionTensors<T> a) {
  using Tile = SwizzledTile<kDim>;
  constexpr int kRows = kTensorWarps * 16 * kM;
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const SequencePart part = FindPart(a, static_cast<int>(blockIdx.x) / a.heads, kRows);
  if (part.length == 0) return;
  // Last queries first: they may see the most keys.
  const int first = (part.count - 1 - part.index) * kRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  const int q_column = head * a.head_dim;
  const int kv_column = head / (a.heads / a.kv_heads) * a.head_dim;

  const Tile q{DynamicShared<unsigned char>()};
  const Tile k{q.at + Tile::Bytes(kRows)}, v{k.at + Tile::Bytes(kKeys)};
  const auto copy = [&](const Tile& to, const TokenRows<const T>& from, int key) {
    to.template CopyAsync<kKeys, kTensorThreads>(from.At(part.begin + key, kv_column), from.stride,
                                                 part.length - key, a.head_dim);
    ptx::CopyAsyncCommit();
  };
  const IndexRange keys = KeysOf(a, part.length, first, kRows);
  int key = keys.begin / kKeys * kKeys;
  q.template CopyAsync<kRows, kTensorThreads>(a.q.At(part.begin + first, q_column), a.q.stride,
                                              part.length - first, a.head_dim);
  copy(k, a.k, key);

  const DropoutBlocks blocks(a, part.begin, head);
  Accumulators<kM, kDim / 8> out = {};
  RunningSoftmax<kM> softmax;
  for (; key < keys.end; key += kKeys) {
    // Values arrive while scores are computed, the next keys while values are summed.
    ptx::CopyAsyncWait<0>();
    __syncthreads();
    copy(v, a.v, key);
    Accumulators<kM, kKeys / 8> scores = {};
    MultiplyByRows<T>(scores, q, warp_row, k);
    ptx::CopyAsyncWait<0>();
    __syncthreads();
    if (key + kKeys < keys.end) copy(k, a.k, key + kKeys);

    const int query = first + warp_row;
    if (key + kKeys > part.length || !a.AllSee(query, 16 * kM, key, kKeys)) {
      // Few tiles come here: where the lane's elements are takes no registers meanwhile.
      const int lane = ptx::Anew(static_cast<int>(threadIdx.x) % kWarp);
      HideUnseen(
          scores,
          [&](int row, int column) {
            return (key + column < part.length) & a.Sees(query + row, key + column);
          },
          lane);
    }
    float factors[kM][2];
    softmax.Add(scores, a.log2_scale, factors);
    ScaleRows(out, factors);
    KeptOfQueries<kDrops, kM, kKeys / 8>(blocks, query, key).Apply(scores);
    LeftFragments<kM, kKeys / 16> weights;
    RoundToLeft<T>(weights, scores);
    Multiply<T>(out, weights, v, 0);
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOfFour(softmax.sums[m][half]), inverse = a.value_scale / sum;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        out[m][n][2 * half] *= inverse;
        out[m][n][2 * half + 1] *= inverse;
      }
      const int query = first + warp_row + 16 * m + AccumulatorRow(2 * half);
      if (threadIdx.x % 4 == 0 && query < part.length) {
        a.log_sum_exp[int64_t{head} * a.tokens + part.begin + query] =
            softmax.maxima[m][half] * a.scale + logf(sum);
      }
    }
  }
  StoreRows<T>(q, warp_row, out);
  q.template CopyOut<16 * kM>(a.out.At(part.begin + first + warp_row, q_column), a.out.stride,
                              warp_row, part.length - first - warp_row, a.head_dim);
}

template <class T, int kDim, bool kDrops>
Status LaunchForwardKernel(const Stream& stream, std::string_view op,
                           const AttentionTensors<T>& a) {
  // With dropout the registers of 96 columns hold half the rows.
  constexpr int kM = kDim <= 128 && !(kDrops && kDim == 96) ? 2 : 1, kKeys = kDim <= 64 ? 64 : 32;
  constexpr int kRows = kTensorWarps * 16 * kM;
  return Launch(stream, op,
                {.grid = {static_cast<unsigned>(MostParts(a.tokens, a.sequences, kRows) * a.heads)},
                 .block = {kTensorThreads},
                 .shared_bytes = SwizzledTile<kDim>::Bytes(kRows + 2 * kKeys)},
                AttentionForwardKernel<T, kDim, kM, kKeys, kDrops>, a);
}

template <class T, int kDim>
Status LaunchForward(const Stream& stream, std::string_view op, const AttentionTensors<T>& a) {
  return a.Drops() ? LaunchForwardKernel<T, kDim, true>(stream, op, a)
                   : LaunchForwardKernel<T, kDim, false>(stream, op, a);
}

}  // namespace weft::kernels::cuda
