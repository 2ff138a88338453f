#pragma once

// What the CUDA kernels of attention share: their parameters, who does which part of the work, and
// which queries see which keys.

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention_dropout.h"
#include "kernels/cuda/vector.h"
#include "kernels/step_value.h"

namespace weft::kernels::cuda {

/// Rows of a token matrix.
template <class T>
struct TokenRows {
  T* data = nullptr;
  int64_t stride = 0;  ///< Elements between rows.

  __device__ __forceinline__ T* At(int64_t token, int64_t column) const {
    return data + token * stride + column;
  }
};

/// What the backward pass needs of a query and head besides its rows.
struct alignas(8) QueryStats {
  float log2_sum;  ///< log_sum_exp in base 2
  float mean;      ///< of the gradients of its probabilities, sum(out * dout), times the share of
                   ///< the weights that dropout keeps
};

/// One call of the operation, after its arguments were checked. Queries and keys are counted from
/// the begin of their sequence.
template <class T>
struct AttentionTensors {
  TokenRows<const T> q, k, v;
  TokenRows<T> out;
  float* log_sum_exp;       ///< [heads, tokens]
  TokenRows<const T> dout;  ///< Backward only, like all until stats.
  TokenRows<T> dq, dk, dv;
  QueryStats* stats;  ///< [heads, tokens]
  const int32_t* sequence_starts;
  int sequences;
  int tokens;
  int heads;
  int kv_heads;
  int head_dim;
  float scale;
  float log2_scale;      ///< scale times log2(e): what 2 is raised to is a score times this.
  float gradient_scale;  ///< scale over the share of the weights that dropout keeps
  float value_scale;     ///< 1 over that share
  bool causal;
  int window;  ///< Causal only: 1 to tokens.
  AttentionDraw dropout;
  StepValue<uint32_t> step;  ///< In place of that in dropout.key.

  bool Drops() const { return dropout.threshold > 0; }
  __device__ __forceinline__ bool Sees(int query, int key) const {
    // Without branches, and of the difference alone: 0 to window - 1.
    return (!causal) | (static_cast<unsigned>(query - key) < static_cast<unsigned>(window));
  }
  /// Whether these `queries` queries all see these `keys` keys.
  __device__ __forceinline__ bool AllSee(int query, int queries, int key, int keys) const {
    return !causal || (key + keys - 1 <= query && key > query + queries - 1 - window);
  }
};

/// Numbers [begin, end).
struct IndexRange {
  int begin;
  int end;
};

/// The keys that some of `queries` queries from `query` on see.
template <class T>
__device__ __forceinline__ IndexRange KeysOf(const AttentionTensors<T>& a, int length, int query,
                                             int queries) {
  if (!a.causal) return {0, length};
  return {std::max(0, query + 1 - a.window), std::min(length, query + queries)};
}

/// The queries that see some of `keys` keys from `key` on.
template <class T>
__device__ __forceinline__ IndexRange QueriesOf(const AttentionTensors<T>& a, int length, int key,
                                                int keys) {
  if (!a.causal) return {0, length};
  return {key, key + std::min(length - key, a.window + keys - 1)};
}

/// `index` of the `count` parts of equal size that a sequence is cut into; of no length where there
/// is nothing to do.
struct SequencePart {
  int begin;   ///< Of the sequence, in tokens.
  int length;  ///< Of the sequence.
  int index;
  int count;
};

/// Parts of at most `rows` tokens in sequences of `tokens` tokens together: at most this many.
inline int64_t MostParts(int64_t tokens, int64_t sequences, int64_t rows) {
  return tokens / rows + std::min(sequences, tokens);
}

/// The part of number `number`, the last sequence's first. Called by whole warps, which look at 32
/// sequences at a time. No values of sequence_starts make it go outside the tokens.
template <class T>
__device__ __forceinline__ SequencePart FindPart(const AttentionTensors<T>& a, int number,
                                                 int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int last = a.sequences - 1; last >= 0; last -= kWarp) {
    const int sequence = last - lane;
    int begin = 0, length = 0;
    if (sequence >= 0) {
      begin = std::min(std::max(a.sequence_starts[sequence], 0), a.tokens);
      length = std::max(std::min(a.sequence_starts[sequence + 1], a.tokens) - begin, 0);
    }
    const int count = (length + rows - 1) / rows;
    int sum = count;
#pragma unroll
    for (int bits = 1; bits < kWarp; bits *= 2) {
      const int before = __shfl_up_sync(kAllLanes, sum, bits);
      if (lane >= bits) sum += before;
    }
    const unsigned there = __ballot_sync(kAllLanes, number < sum);
    if (there != 0) {
      const int from = __ffs(static_cast<int>(there)) - 1;
      return {.begin = __shfl_sync(kAllLanes, begin, from),
              .length = __shfl_sync(kAllLanes, length, from),
              .index = number - __shfl_sync(kAllLanes, sum - count, from),
              .count = __shfl_sync(kAllLanes, count, from)};
    }
    number -= __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return {.begin = 0, .length = 0, .index = 0, .count = 0};
}

/// In all four lanes that hold a row's accumulators: the largest of them, or the sum.
__device__ __forceinline__ float MaxOfFour(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ __forceinline__ float SumOfFour(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

}  // namespace weft::kernels::cuda
