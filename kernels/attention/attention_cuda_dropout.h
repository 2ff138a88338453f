#pragma once

// Dropout of attention's weights on CUDA devices, as attention_dropout.h says: a Philox block
// decides over 8 keys of a query. On the tensor cores these are elements of several lanes. Each
// lane makes one block in 8 elements and trades its words for those of its own elements.

#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/swizzled_tile.h"

namespace weft::kernels::cuda {

/// Which of the elements of a lane stay.
template <int kM, int kN>
struct KeptWeights {
  static constexpr int kBits = 32;
  uint32_t bits[(4 * kM * kN + kBits - 1) / kBits] = {};

  __device__ __forceinline__ void Add(int m, int n, int i, bool kept) {
    const int at = 4 * (m * kN + n) + i;
    bits[at / kBits] |= static_cast<uint32_t>(kept) << (at % kBits);
  }
  /// The value, or zero.
  __device__ __forceinline__ float Of(int m, int n, int i, float value) const {
    const int at = 4 * (m * kN + n) + i;
    return (bits[at / kBits] >> (at % kBits) & 1) != 0 ? value : 0.0f;
  }
  __device__ __forceinline__ void Apply(Accumulators<kM, kN>& weights) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[m][n][i] = Of(m, n, i, weights[m][n][i]);
      }
    }
  }
};

/// All of them.
struct AllWeights {
  __device__ __forceinline__ float Of(int, int, int, float value) const { return value; }
  template <int kM, int kN>
  __device__ __forceinline__ void Apply(Accumulators<kM, kN>&) const {}
};

/// The blocks of a head and sequence.
struct DropoutBlocks {
  PhiloxKey key;
  uint32_t threshold;
  uint32_t first_token;
  uint32_t head;

  template <class T>
  __device__ __forceinline__ DropoutBlocks(const AttentionTensors<T>& a, int part_begin,
                                           int in_head)
      : key{a.dropout.key.seed, a.step.Get(), a.dropout.key.site},
        threshold(static_cast<uint32_t>(a.dropout.threshold)),
        first_token(a.dropout.first_token + static_cast<uint32_t>(part_begin)),
        head(a.dropout.first_head + static_cast<uint32_t>(in_head)) {}

  /// Whether any weight goes.
  __device__ __forceinline__ bool Drop() const { return threshold > 0; }
  /// The random words of a query and of the keys from kKeysPerBlock * `keys` on.
  __device__ __forceinline__ Philox4 At(int query, int keys) const {
    const uint32_t high = head << kKeyBlockBits | static_cast<uint32_t>(keys);
    return Philox(key, uint64_t{high} << kTokenBits | (first_token + static_cast<uint32_t>(query)));
  }
  /// Whether the weight of number `odd` of the word's two stays.
  __device__ __forceinline__ bool Keeps(uint32_t word, int odd) const {
    return (odd == 0 ? word & 0xffffu : word >> 16) >= threshold;
  }
  /// Whether one query keeps one key, for kernels that look at one at a time.
  __device__ __forceinline__ bool Keeps(int query, int key_index) const {
    const Philox4 block = At(query, key_index / kKeysPerBlock);
    const int word = key_index % kKeysPerBlock / 2;
    // An index would put them into memory.
    const uint32_t even = word == 0 ? block.v[0] : block.v[2];
    const uint32_t odd = word == 1 ? block.v[1] : block.v[3];
    return Keeps(word % 2 == 0 ? even : odd, key_index % 2);
  }
};

/// Transposes words among four lanes that are `kStride` apart, from a multiple of 4 kStride on:
/// lane i gets as words[j] what lane j has as words[i].
template <int kStride>
__device__ __forceinline__ void TransposeWords(uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) / kStride % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + bit];
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? low : high, bit * kStride);
      low = upper ? got : low;
      high = upper ? high : got;
    }
  }
}

/// What stays of a warp's weights, whose rows are the queries from `query` on and whose columns are
/// the keys from `key` on, a multiple of kKeysPerBlock.
template <bool kDrops, int kM, int kN>
__device__ __forceinline__ auto KeptOfQueries(const DropoutBlocks& blocks, int query, int key) {
  if constexpr (!kDrops) {
    return AllWeights();
  } else {
    // The four lanes of a row have two keys each of every eight columns.
    const int part = static_cast<int>(threadIdx.x) % 4;
    KeptWeights<kM, kN> kept;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = query + 16 * m + AccumulatorRow(2 * half);
#pragma unroll
        for (int n = 0; n < kN; n += 4) {
          Philox4 block = blocks.At(row, key / kKeysPerBlock + n + part);
          TransposeWords<1>(block.v);
#pragma unroll
          for (int j = 0; j < 4 && n + j < kN; ++j) {
            kept.Add(m, n + j, 2 * half, blocks.Keeps(block.v[j], 0));
            kept.Add(m, n + j, 2 * half + 1, blocks.Keeps(block.v[j], 1));
          }
        }
      }
    }
    return kept;
  }
}

/// Likewise where rows are keys and columns are queries.
template <bool kDrops, int kM, int kN>
__device__ __forceinline__ auto KeptOfKeys(const DropoutBlocks& blocks, int query, int key) {
  static_assert(kN % 2 == 0);
  if constexpr (!kDrops) {
    return AllWeights();
  } else {
    // Eight lanes have the eight keys of a block for each of their queries: in 16 columns four
    // blocks in each of two n. Four of the lanes make those of one n, four those of the other.
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int which = lane / 4 % 2, made = lane / 8;
    // One after the other: side by side they do not fit into Hopper's registers.
    [[maybe_unused]] constexpr int kAtOnce = kM == 1 ? 1 : kN / 2;
    KeptWeights<kM, kN> kept;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll kAtOnce
      for (int n = 0; n < kN; n += 2) {
        const int column = 8 * (n + which) + 2 * (lane % 4) + made % 2;
        Philox4 block = blocks.At(query + column, (key + 16 * m) / kKeysPerBlock + made / 2);
        TransposeWords<8>(block.v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t own = block.v[i], other = __shfl_xor_sync(kAllLanes, own, 4);
          kept.Add(m, n, i, blocks.Keeps(which == 0 ? own : other, which));
          kept.Add(m, n + 1, i, blocks.Keeps(which == 0 ? other : own, which));
        }
      }
    }
    return kept;
  }
}

}  // namespace weft::kernels::cuda
