#pragma once

// Attention by multiplications in f32, for f32 tensors and for those whose rows are not aligned to
// 16 bytes. The same division of work as on the tensor cores; see attention_cuda_forward.h and
// attention_cuda_backward.h. Whether weights are dropped is asked for each of them: kernels with
// and without would take twice as long to compile. That is little next to the multiplications
// behind it, but costs registers: beyond 128 columns two blocks have a multiprocessor where three
// had it.

#include "kernels/attention/attention_cuda_dropout.h"
#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"

namespace weft::kernels::cuda {

/// A block is 16 x 16 threads: thread (x, y) has rows y + 16 i of a tile of kPlainSide * kPer, and
/// of them columns x + 16 j. The threads of a row are half of a warp.
inline constexpr int kPlainSide = 16;
inline constexpr int kPlainThreads = kPlainSide * kPlainSide;

/// Widest head for this many rows a thread, and what a thread has of a row of it.
template <int kPer>
inline constexpr int kPlainDim = 256 / kPer;
template <int kPer>
inline constexpr int kPlainColumns = kPlainDim<kPer> / kPlainSide;

struct PlainThread {
  int x;
  int y;

  __device__ PlainThread()
      : x(static_cast<int>(threadIdx.x) % kPlainSide),
        y(static_cast<int>(threadIdx.x) / kPlainSide) {}
};

/// Rows in f32, `width` apart, which is odd so that neighbours lie in different banks.
struct PlainRows {
  float* at;
  int width;

  /// Copies kPer * 16 rows of a head's columns by the whole block; zeros from `rows` on.
  template <int kPer, class T>
  __device__ __forceinline__ void Load(const T* from, int64_t stride, int rows, int columns) const {
    const PlainThread thread;
    for (int i = 0; i < kPer; ++i) {
      const int row = thread.y + kPlainSide * i;
      for (int c = thread.x; c < columns; c += kPlainSide) {
        at[row * width + c] = row < rows ? Widen(from[row * stride + c]) : 0.0f;
      }
    }
  }
};

/// products[i][j] = row y + 16 i of a times row x + 16 j of b.
template <int kPer>
__device__ __forceinline__ void MultiplyPlain(float (&products)[kPer][kPer], const PlainRows& a,
                                              const PlainRows& b, int columns) {
  const PlainThread thread;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) products[i][j] = 0;
  }
  for (int c = 0; c < columns; ++c) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float left = a.at[(thread.y + kPlainSide * i) * a.width + c];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        products[i][j] += left * b.at[(thread.x + kPlainSide * j) * b.width + c];
      }
    }
  }
}

/// What a thread has of kPer rows of a result.
template <int kPer>
struct PlainSums {
  float of[kPer][kPlainColumns<kPer>] = {};

  /// Adds the rows of b, weighted by the rows of `weights`: values[i][j] of thread (x, y) is weight
  /// x + 16 j of row y + 16 i, and passes through shared memory, where only the row's threads see
  /// it.
  __device__ __forceinline__ void Add(const PlainRows& weights, const float (&values)[kPer][kPer],
                                      const PlainRows& b, int columns) {
    const PlainThread thread;
    __syncwarp();
    for (int i = 0; i < kPer; ++i) {
      for (int j = 0; j < kPer; ++j) {
        weights.at[(thread.y + kPlainSide * i) * weights.width + thread.x + kPlainSide * j] =
            values[i][j];
      }
    }
    __syncwarp();
    for (int row = 0; row < kPlainSide * kPer; ++row) {
      float weight[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        weight[i] = weights.at[(thread.y + kPlainSide * i) * weights.width + row];
      }
#pragma unroll
      for (int c = 0; c < kPlainColumns<kPer>; ++c) {
        const int column = thread.x + kPlainSide * c;
        const float value = column < columns ? b.at[row * b.width + column] : 0.0f;
#pragma unroll
        for (int i = 0; i < kPer; ++i) of[i][c] += weight[i] * value;
      }
    }
  }

  /// Row i times factors[i].
  __device__ __forceinline__ void Scale(const float (&factors)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (float& sum : of[i]) sum *= factors[i];
    }
  }

  template <class T>
  __device__ __forceinline__ void Store(T* to, int64_t stride, int rows, int columns,
                                        float factor) const {
    const PlainThread thread;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int row = thread.y + kPlainSide * i;
#pragma unroll
      for (int c = 0; c < kPlainColumns<kPer>; ++c) {
        const int column = thread.x + kPlainSide * c;
        if (row < rows && column < columns) {
          to[row * stride + column] = Narrow<T>(of[i][c] * factor);
        }
      }
    }
  }
};

/// Shared memory of a block: this many tiles of rows of a head, then one of weights.
template <int kPer>
struct PlainShared {
  static constexpr int kTile = kPlainSide * kPer;

  float* at;
  int width;

  __device__ explicit PlainShared(int head_dim) : at(DynamicShared<float>()), width(head_dim + 1) {}
  __device__ PlainRows Rows(int tile) const { return {at + tile * kTile * width, width}; }
  __device__ PlainRows Weights(int tiles) const { return {at + tiles * kTile * width, kTile + 1}; }

  static size_t Bytes(int tiles, int head_dim) {
    return static_cast<size_t>(kTile * (tiles * (head_dim + 1) + kTile + 1)) * sizeof(float);
  }
};

template <class T, int kPer>
__global__ void __launch_bounds__(kPlainThreads, 2) PlainForwardKernel(AttentionTensors<T> a) {
  constexpr int kTile = kPlainSide * kPer;
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const SequencePart part = FindPart(a, static_cast<int>(blockIdx.x) / a.heads, kTile);
  if (part.length == 0) return;
  const int first = (part.count - 1 - part.index) * kTile;
  const int kv_head = head / (a.heads / a.kv_heads), columns = a.head_dim;
  const PlainThread thread;
  const PlainShared<kPer> shared(columns);
  const PlainRows q = shared.Rows(0), k = shared.Rows(1), v = shared.Rows(2);
  q.Load<kPer>(a.q.At(part.begin + first, int64_t{head} * columns), a.q.stride, part.length - first,
               columns);
  const DropoutBlocks blocks(a, part.begin, head);
  const bool drops = blocks.Drop();
  PlainSums<kPer> out;
  float maxima[kPer], sums[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    maxima[i] = -INFINITY;
    sums[i] = 0;
  }
  const IndexRange keys = KeysOf(a, part.length, first, kTile);
  for (int key = keys.begin / kTile * kTile; key < keys.end; key += kTile) {
    const int64_t token = part.begin + key, column = int64_t{kv_head} * columns;
    __syncthreads();
    k.Load<kPer>(a.k.At(token, column), a.k.stride, part.length - key, columns);
    v.Load<kPer>(a.v.At(token, column), a.v.stride, part.length - key, columns);
    __syncthreads();
    float scores[kPer][kPer], factors[kPer];
    MultiplyPlain(scores, q, k, columns);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      float largest = maxima[i];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int seen = key + thread.x + kPlainSide * j;
        if (seen >= part.length || !a.Sees(first + thread.y + kPlainSide * i, seen)) {
          scores[i][j] = -INFINITY;
        }
        largest = fmaxf(largest, scores[i][j]);
      }
#pragma unroll
      for (int bits = kPlainSide / 2; bits > 0; bits /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bits));
      }
      const float shift = largest == -INFINITY ? 0.0f : largest * a.log2_scale;
      factors[i] = ptx::Exp2(maxima[i] * a.log2_scale - shift);
      maxima[i] = largest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        scores[i][j] = ptx::Exp2(scores[i][j] * a.log2_scale - shift);
        sum += scores[i][j];
        const int query = first + thread.y + kPlainSide * i;
        if (drops && !blocks.Keeps(query, key + thread.x + kPlainSide * j)) scores[i][j] = 0;
      }
      sums[i] = sums[i] * factors[i] + sum;
    }
    out.Scale(factors);
    out.Add(shared.Weights(3), scores, v, columns);
  }
  float inverses[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int bits = kPlainSide / 2; bits > 0; bits /= 2) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], bits);
    }
    inverses[i] = a.value_scale / sums[i];
    const int query = first + thread.y + kPlainSide * i;
    if (thread.x == 0 && query < part.length) {
      a.log_sum_exp[int64_t{head} * a.tokens + part.begin + query] =
          maxima[i] * a.scale + logf(sums[i]);
    }
  }
  out.Scale(inverses);
  out.Store(a.out.At(part.begin + first, int64_t{head} * columns), a.out.stride,
            part.length - first, columns, 1.0f);
}

/// Weights from scores, and in place of their gradients those of the scores, of query `query` and
/// key `key` of the part's sequence.
template <class T>
__device__ __forceinline__ void DifferentiateSoftmax(const AttentionTensors<T>& a,
                                                     const SequencePart& part, int head,
                                                     const DropoutBlocks& blocks, int query,
                                                     int key, float& p, float& ds) {
  if (query >= part.length || key >= part.length || !a.Sees(query, key)) {
    p = ds = 0;
    return;
  }
  const QueryStats stats = a.stats[int64_t{head} * a.tokens + part.begin + query];
  p = ptx::Exp2(p * a.log2_scale - stats.log2_sum);
  const bool kept = !blocks.Drop() || blocks.Keeps(query, key);
  ds = p * ((kept ? ds : 0.0f) - stats.mean);
  p = kept ? p : 0.0f;
}

template <class T, int kPer>
__global__ void __launch_bounds__(kPlainThreads, 2) PlainKeyGradientKernel(AttentionTensors<T> a) {
  constexpr int kTile = kPlainSide * kPer;
  const int kv_head = static_cast<int>(blockIdx.x) % a.kv_heads;
  const SequencePart part = FindPart(a, static_cast<int>(blockIdx.x) / a.kv_heads, kTile);
  if (part.length == 0) return;
  const int first = part.index * kTile;
  const int group = a.heads / a.kv_heads, columns = a.head_dim;
  const PlainThread thread;
  const PlainShared<kPer> shared(columns);
  const PlainRows k = shared.Rows(0), v = shared.Rows(1), q = shared.Rows(2), dout = shared.Rows(3);
  const int64_t kv_token = part.begin + first, kv_column = int64_t{kv_head} * columns;
  k.Load<kPer>(a.k.At(kv_token, kv_column), a.k.stride, part.length - first, columns);
  v.Load<kPer>(a.v.At(kv_token, kv_column), a.v.stride, part.length - first, columns);
  PlainSums<kPer> dk, dv;
  const IndexRange queries = QueriesOf(a, part.length, first, kTile);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const DropoutBlocks blocks(a, part.begin, head);
    for (int query = queries.begin; query < queries.end; query += kTile) {
      const int64_t token = part.begin + query, column = int64_t{head} * columns;
      __syncthreads();
      q.Load<kPer>(a.q.At(token, column), a.q.stride, part.length - query, columns);
      dout.Load<kPer>(a.dout.At(token, column), a.dout.stride, part.length - query, columns);
      __syncthreads();
      float p[kPer][kPer], ds[kPer][kPer];
      MultiplyPlain(p, k, q, columns);
      MultiplyPlain(ds, v, dout, columns);
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
          DifferentiateSoftmax(a, part, head, blocks, query + thread.x + kPlainSide * j,
                               first + thread.y + kPlainSide * i, p[i][j], ds[i][j]);
        }
      }
      dv.Add(shared.Weights(4), p, dout, columns);
      dk.Add(shared.Weights(4), ds, q, columns);
    }
  }
  dk.Store(a.dk.At(kv_token, kv_column), a.dk.stride, part.length - first, columns,
           a.gradient_scale);
  dv.Store(a.dv.At(kv_token, kv_column), a.dv.stride, part.length - first, columns, a.value_scale);
}

template <class T, int kPer>
__global__ void __launch_bounds__(kPlainThreads, 2)
    PlainQueryGradientKernel(AttentionTensors<T> a) {
  constexpr int kTile = kPlainSide * kPer;
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const SequencePart part = FindPart(a, static_cast<int>(blockIdx.x) / a.heads, kTile);
  if (part.length == 0) return;
  const int first = (part.count - 1 - part.index) * kTile;
  const int kv_head = head / (a.heads / a.kv_heads), columns = a.head_dim;
  const PlainThread thread;
  const PlainShared<kPer> shared(columns);
  const PlainRows q = shared.Rows(0), dout = shared.Rows(1), k = shared.Rows(2), v = shared.Rows(3);
  const int64_t q_token = part.begin + first, q_column = int64_t{head} * columns;
  q.Load<kPer>(a.q.At(q_token, q_column), a.q.stride, part.length - first, columns);
  dout.Load<kPer>(a.dout.At(q_token, q_column), a.dout.stride, part.length - first, columns);
  const DropoutBlocks blocks(a, part.begin, head);
  PlainSums<kPer> dq;
  const IndexRange keys = KeysOf(a, part.length, first, kTile);
  for (int key = keys.begin / kTile * kTile; key < keys.end; key += kTile) {
    const int64_t token = part.begin + key, column = int64_t{kv_head} * columns;
    __syncthreads();
    k.Load<kPer>(a.k.At(token, column), a.k.stride, part.length - key, columns);
    v.Load<kPer>(a.v.At(token, column), a.v.stride, part.length - key, columns);
    __syncthreads();
    float p[kPer][kPer], ds[kPer][kPer];
    MultiplyPlain(p, q, k, columns);
    MultiplyPlain(ds, dout, v, columns);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        DifferentiateSoftmax(a, part, head, blocks, first + thread.y + kPlainSide * i,
                             key + thread.x + kPlainSide * j, p[i][j], ds[i][j]);
      }
    }
    dq.Add(shared.Weights(4), ds, k, columns);
  }
  dq.Store(a.dq.At(q_token, q_column), a.dq.stride, part.length - first, columns, a.gradient_scale);
}

/// Two rows a thread where the head is narrow enough.
template <class T>
Status LaunchPlain(const Stream& stream, std::string_view op, const AttentionTensors<T>& a,
                   int tiles, int heads, void (*narrow)(AttentionTensors<T>),
                   void (*wide)(AttentionTensors<T>)) {
  const bool is_narrow = a.head_dim <= kPlainDim<2>;
  const int64_t parts = MostParts(a.tokens, a.sequences, is_narrow ? 2 * kPlainSide : kPlainSide);
  return Launch(stream, op,
                {.grid = {static_cast<unsigned>(parts * heads)},
                 .block = {kPlainThreads},
                 .shared_bytes = is_narrow ? PlainShared<2>::Bytes(tiles, a.head_dim)
                                           : PlainShared<1>::Bytes(tiles, a.head_dim)},
                is_narrow ? narrow : wide, a);
}

template <class T>
Status LaunchPlainForward(const Stream& stream, std::string_view op, const AttentionTensors<T>& a) {
  return LaunchPlain(stream, op, a, 3, a.heads, PlainForwardKernel<T, 2>, PlainForwardKernel<T, 1>);
}

template <class T>
Status LaunchPlainKeyGradient(const Stream& stream, std::string_view op,
                              const AttentionTensors<T>& a) {
  return LaunchPlain(stream, op, a, 4, a.kv_heads, PlainKeyGradientKernel<T, 2>,
                     PlainKeyGradientKernel<T, 1>);
}

template <class T>
Status LaunchPlainQueryGradient(const Stream& stream, std::string_view op,
                                const AttentionTensors<T>& a) {
  return LaunchPlain(stream, op, a, 4, a.heads, PlainQueryGradientKernel<T, 2>,
                     PlainQueryGradientKernel<T, 1>);
}

}  // namespace weft::kernels::cuda
