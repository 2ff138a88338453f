#pragma once

// What the kernels of attention for Hopper share. Blocks are persistent: each goes from part to
// part of the work, and one of its warps brings tiles ahead of the warpgroups that multiply them.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/panel_tile.h"

namespace weft::kernels::cuda {

/// Turns through kStages places, and counts phases of their barriers.
template <int kStages>
struct Turn {
  uint32_t number = 0;

  __device__ __forceinline__ int stage() const { return static_cast<int>(number % kStages); }
  /// Of the phase that ends when the place was filled.
  __device__ __forceinline__ uint32_t parity() const { return number / kStages % 2; }
  __device__ __forceinline__ void Next() { ++number; }
};

/// Places for tiles: filled by the copying thread, then emptied by `readers` warps.
template <int kStages>
struct Places {
  ptx::PhaseBarrier full[kStages];
  ptx::PhaseBarrier empty[kStages];

  /// By one thread of the block, before all others.
  __device__ __forceinline__ void Init(int fillers, int readers) {
    for (int i = 0; i < kStages; ++i) {
      ptx::InitBarrier(&full[i], fillers);
      ptx::InitBarrier(&empty[i], readers);
    }
  }
  __device__ __forceinline__ void WaitTillEmpty(const Turn<kStages>& turn) {
    ptx::WaitForPhase(&empty[turn.stage()], turn.parity() ^ 1);
  }
  __device__ __forceinline__ void WaitTillFull(const Turn<kStages>& turn) {
    ptx::WaitForPhase(&full[turn.stage()], turn.parity());
  }
  /// By whole warps: none of its lanes will look at the place again.
  __device__ __forceinline__ void Release(const Turn<kStages>& turn) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) ptx::Arrive(&empty[turn.stage()]);
  }
};

/// The maps of a call's inputs.
struct HeadMaps {
  CUtensorMap q, k, v, dout;
};

template <class T>
Result<CUtensorMap> MapOf(std::string_view op, const TokenRows<const T>& rows, int heads,
                          const AttentionTensors<T>& a, int box_rows) {
  return HeadTensorMap(op, std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16,
                       {.data = rows.data,
                        .tokens = a.tokens,
                        .heads = heads,
                        .head_dim = a.head_dim,
                        .stride = rows.stride},
                       box_rows);
}

/// Blocks of a persistent kernel, one a multiprocessor, for `items` parts.
inline unsigned PersistentBlocks(const Stream& stream, int64_t items) {
  return static_cast<unsigned>(std::min<int64_t>(items, stream.cuda->limits().multiprocessors));
}

/// Calls fn.operator()<kDim>() with the columns of the tiles that hold a head.
template <class Fn>
Status WithPanelDim(int head_dim, Fn&& fn) {
  if (head_dim <= 64) return fn.template operator()<64>();
  if (head_dim <= 128) return fn.template operator()<128>();
  return fn.template operator()<256>();
}

}  // namespace weft::kernels::cuda
