#pragma once

// What the kernels of attention for Hopper share. Blocks are persistent: each goes from part to
// part of the work, and one of its warps brings tiles ahead of the warpgroups that multiply them.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kernels/attention/attention_cuda_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/panel_tile.h"
#include "kernels/cuda/tile_ring.h"

namespace weft::kernels::cuda {

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
