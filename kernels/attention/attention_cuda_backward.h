#pragma once

// The backward pass on the tensor cores, in two kernels, so that nothing is added atomically: one
// goes over the queries of some keys and sums dK and dV, the other over the keys of some queries
// and sums dQ. Both make the probabilities anew: with S = Q K^T, P = exp(S - log_sum_exp), dP = dO
// V^T and dS = P (dP - mean), dV = P^T dO, dK = dS^T Q and dQ = dS K.

#include "kernels/attention/attention_cuda_forward.h"
#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/swizzled_tile.h"

namespace weft::kernels::cuda {

template <int kM, int kN>
__device__ __forceinline__ void ScaleAll(Accumulators<kM, kN>& sums, float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factor;
    }
  }
}

/// dK and dV of 16 kM kTensorWarps keys, and of kOut columns from a multiple of that on. The warps
/// hold transposed scores, rows of keys, whose rounded probabilities are left operands as they are.
template <class T, int kDim, int kOut, int kM, int kQueries, bool kDrops>
__global__ void __launch_bounds__(kTensorThreads)
    AttentionKeyGradientKernel(AttentionTensors<T> a) {
  using Tile = SwizzledTile<kDim>;
  constexpr int kKeys = kTensorWarps * 16 * kM, kOutParts = kDim / kOut;
  const int kv_head = static_cast<int>(blockIdx.x) / kOutParts % a.kv_heads;
  const int out_column = static_cast<int>(blockIdx.x) % kOutParts * kOut;
  const SequencePart part =
      FindPart(a, static_cast<int>(blockIdx.x) / kOutParts / a.kv_heads, kKeys);
  if (part.length == 0) return;
  const int first = part.index * kKeys;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  const int kv_column = kv_head * a.head_dim;
  const int group = a.heads / a.kv_heads;

  // Two of each of the tiles that come and go.
  const Tile k{DynamicShared<unsigned char>()}, v{k.at + Tile::Bytes(kKeys)};
  const Tile q{v.at + Tile::Bytes(kKeys)}, dout{q.at + 2 * Tile::Bytes(kQueries)};
  auto* stats = reinterpret_cast<QueryStats*>(dout.at + 2 * Tile::Bytes(kQueries));
  const auto half = [](const Tile& two, int step) {
    return Tile{two.at + step % 2 * Tile::Bytes(kQueries)};
  };

  // One head of the group after another.
  const IndexRange queries = QueriesOf(a, part.length, first, kKeys);
  const int query_tiles = (queries.end - queries.begin + kQueries - 1) / kQueries;
  const int steps = query_tiles * group;
  const auto copy = [&](int step) {
    const int head = kv_head * group + step / query_tiles;
    const int query = queries.begin + step % query_tiles * kQueries;
    const int64_t token = part.begin + query;
    const int rows = part.length - query, column = head * a.head_dim;
    half(q, step).template CopyAsync<kQueries, kTensorThreads>(a.q.At(token, column), a.q.stride,
                                                               rows, a.head_dim);
    half(dout, step)
        .template CopyAsync<kQueries, kTensorThreads>(a.dout.At(token, column), a.dout.stride, rows,
                                                      a.head_dim);
    const int row = static_cast<int>(threadIdx.x);
    static_assert(kQueries <= kTensorThreads);
    if (row < kQueries) {
      ptx::CopyAsync8(stats + step % 2 * kQueries + row,
                      a.stats + int64_t{head} * a.tokens + token + row, row < rows);
    }
    ptx::CopyAsyncCommit();
  };
  const int64_t key_token = part.begin + first;
  k.template CopyAsync<kKeys, kTensorThreads>(a.k.At(key_token, kv_column), a.k.stride,
                                              part.length - first, a.head_dim);
  v.template CopyAsync<kKeys, kTensorThreads>(a.v.At(key_token, kv_column), a.v.stride,
                                              part.length - first, a.head_dim);
  copy(0);

  Accumulators<kM, kOut / 8> dk = {}, dv = {};
  for (int step = 0; step < steps; ++step) {
    ptx::CopyAsyncWait<0>();
    __syncthreads();
    if (step + 1 < steps) copy(step + 1);

    Accumulators<kM, kQueries / 8> p = {}, ds = {};
    MultiplyByRows<T>(p, k, warp_row, half(q, step));
    MultiplyByRows<T>(ds, v, warp_row, half(dout, step));
    const int key = first + warp_row;
    const int query = queries.begin + step % query_tiles * kQueries;
    if (!a.AllSee(query, kQueries, key, 16 * kM)) {
      HideUnseen(p, [&](int row, int column) { return a.Sees(query + column, key + row); });
    }
    const DropoutBlocks blocks(a, part.begin, kv_head * group + step / query_tiles);
    const auto kept = KeptOfKeys<kDrops, kM, kQueries / 8>(blocks, query, key);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      // Two columns. Queries that are not there are zeros, and add nothing.
      const auto two = LoadPacked<4>(reinterpret_cast<const float*>(stats + step % 2 * kQueries +
                                                                    8 * n + AccumulatorColumn(0)));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float log2_sum = two[i % 2 * 2], mean = two[i % 2 * 2 + 1];
          p[m][n][i] = ptx::Exp2(p[m][n][i] * a.log2_scale - log2_sum);
          ds[m][n][i] = p[m][n][i] * (kept.Of(m, n, i, ds[m][n][i]) - mean);
          p[m][n][i] = kept.Of(m, n, i, p[m][n][i]);
        }
      }
    }
    LeftFragments<kM, kQueries / 16> left;
    RoundToLeft<T>(left, p);
    Multiply<T>(dv, left, half(dout, step), out_column);
    RoundToLeft<T>(left, ds);
    Multiply<T>(dk, left, half(q, step), out_column);
  }

  ScaleAll(dk, a.gradient_scale);
  ScaleAll(dv, a.value_scale);
  StoreRows<T>(k, warp_row, dk);
  StoreRows<T>(v, warp_row, dv);
  const int rows = part.length - first - warp_row, columns = a.head_dim - out_column;
  k.template CopyOut<16 * kM>(a.dk.At(key_token + warp_row, kv_column + out_column), a.dk.stride,
                              warp_row, rows, std::min(columns, kOut));
  v.template CopyOut<16 * kM>(a.dv.At(key_token + warp_row, kv_column + out_column), a.dv.stride,
                              warp_row, rows, std::min(columns, kOut));
}

/// dQ of 16 kM kTensorWarps queries of a head.
template <class T, int kDim, int kM, int kKeys, bool kDrops>
__global__ void __launch_bounds__(kTensorThreads)
    AttentionQueryGradientKernel(AttentionTensors<T> a) {
  using Tile = SwizzledTile<kDim>;
  constexpr int kRows = kTensorWarps * 16 * kM;
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const SequencePart part = FindPart(a, static_cast<int>(blockIdx.x) / a.heads, kRows);
  if (part.length == 0) return;
  const int first = (part.count - 1 - part.index) * kRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  const int q_column = head * a.head_dim;
  const int kv_column = head / (a.heads / a.kv_heads) * a.head_dim;

  const Tile q{DynamicShared<unsigned char>()}, dout{q.at + Tile::Bytes(kRows)};
  const Tile k{dout.at + Tile::Bytes(kRows)}, v{k.at + 2 * Tile::Bytes(kKeys)};
  const auto half = [](const Tile& two, int turn) {
    return Tile{two.at + turn * Tile::Bytes(kKeys)};
  };
  const auto copy = [&](int turn, int key) {
    const int64_t token = part.begin + key;
    half(k, turn).template CopyAsync<kKeys, kTensorThreads>(a.k.At(token, kv_column), a.k.stride,
                                                            part.length - key, a.head_dim);
    half(v, turn).template CopyAsync<kKeys, kTensorThreads>(a.v.At(token, kv_column), a.v.stride,
                                                            part.length - key, a.head_dim);
    ptx::CopyAsyncCommit();
  };
  const IndexRange keys = KeysOf(a, part.length, first, kRows);
  int key = keys.begin / kKeys * kKeys;
  q.template CopyAsync<kRows, kTensorThreads>(a.q.At(part.begin + first, q_column), a.q.stride,
                                              part.length - first, a.head_dim);
  dout.template CopyAsync<kRows, kTensorThreads>(a.dout.At(part.begin + first, q_column),
                                                 a.dout.stride, part.length - first, a.head_dim);
  copy(0, key);

  const int query = first + warp_row;
  QueryStats stats[kM][2] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = query + 16 * m + AccumulatorRow(2 * i);
      if (row < part.length) stats[m][i] = a.stats[int64_t{head} * a.tokens + part.begin + row];
    }
  }

  const DropoutBlocks blocks(a, part.begin, head);
  Accumulators<kM, kDim / 8> dq = {};
  for (int turn = 0; key < keys.end; key += kKeys, turn ^= 1) {
    ptx::CopyAsyncWait<0>();
    __syncthreads();
    if (key + kKeys < keys.end) copy(turn ^ 1, key + kKeys);

    Accumulators<kM, kKeys / 8> p = {}, ds = {};
    MultiplyByRows<T>(p, q, warp_row, half(k, turn));
    MultiplyByRows<T>(ds, dout, warp_row, half(v, turn));
    if (key + kKeys > part.length || !a.AllSee(query, 16 * kM, key, kKeys)) {
      HideUnseen(p, [&](int row, int column) {
        return (key + column < part.length) & a.Sees(query + row, key + column);
      });
    }
    const auto kept = KeptOfQueries<kDrops, kM, kKeys / 8>(blocks, query, key);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const QueryStats& row = stats[m][i / 2];
          const float probability = ptx::Exp2(p[m][n][i] * a.log2_scale - row.log2_sum);
          ds[m][n][i] = probability * (kept.Of(m, n, i, ds[m][n][i]) - row.mean);
        }
      }
    }
    LeftFragments<kM, kKeys / 16> left;
    RoundToLeft<T>(left, ds);
    Multiply<T>(dq, left, half(k, turn), 0);
  }

  ScaleAll(dq, a.gradient_scale);
  StoreRows<T>(q, warp_row, dq);
  q.template CopyOut<16 * kM>(a.dq.At(part.begin + first + warp_row, q_column), a.dq.stride,
                              warp_row, part.length - first - warp_row, a.head_dim);
}

template <class T, int kDim>
Status LaunchKeyGradient(const Stream& stream, std::string_view op, const AttentionTensors<T>& a) {
  constexpr int kOut = kDim <= 128 ? kDim : 128, kM = kDim <= 64 ? 2 : 1;
  constexpr int kQueries = kDim <= 128 ? 32 : 16, kKeys = kTensorWarps * 16 * kM;
  constexpr int kTiles = SwizzledTile<kDim>::Bytes(2 * kKeys + 4 * kQueries);
  return Launch(stream, op,
                {.grid = {static_cast<unsigned>(MostParts(a.tokens, a.sequences, kKeys) *
                                                a.kv_heads * (kDim / kOut))},
                 .block = {kTensorThreads},
                 .shared_bytes = kTiles + 2 * kQueries * sizeof(QueryStats)},
                a.Drops() ? AttentionKeyGradientKernel<T, kDim, kOut, kM, kQueries, true>
                          : AttentionKeyGradientKernel<T, kDim, kOut, kM, kQueries, false>,
                a);
}

template <class T, int kDim, bool kDrops>
Status LaunchQueryGradientKernel(const Stream& stream, std::string_view op,
                                 const AttentionTensors<T>& a) {
  // With dropout the registers hold the scores of fewer keys.
  constexpr int kM = kDim <= 64 ? 2 : 1, kMostKeys = kDrops ? 32 : 64;
  constexpr int kKeys = kDim <= 64 ? kMostKeys : kDim <= 128 ? 32 : 16;
  constexpr int kRows = kTensorWarps * 16 * kM;
  return Launch(stream, op,
                {.grid = {static_cast<unsigned>(MostParts(a.tokens, a.sequences, kRows) * a.heads)},
                 .block = {kTensorThreads},
                 .shared_bytes = SwizzledTile<kDim>::Bytes(2 * kRows + 4 * kKeys)},
                AttentionQueryGradientKernel<T, kDim, kM, kKeys, kDrops>, a);
}

template <class T, int kDim>
Status LaunchQueryGradient(const Stream& stream, std::string_view op,
                           const AttentionTensors<T>& a) {
  return a.Drops() ? LaunchQueryGradientKernel<T, kDim, true>(stream, op, a)
                   : LaunchQueryGradientKernel<T, kDim, false>(stream, op, a);
}

}  // namespace weft::kernels::cuda
