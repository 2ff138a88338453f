#pragma once

#include <cstdint>
#include <vector>

#include "common/model/memory_model.h"

namespace weft {

/// The forward and backward pass of tensor-parallel ranks over one micro-batch.
struct TensorPass {
  const ModelShape& shape;
  int64_t tokens = 0;
  int64_t element_bytes = 2;  ///< Of an activation.
  int64_t recomputed_blocks = 0;
  int64_t recomputed_attentions = 0;  ///< Blocks that recompute attention alone.
};
/// The pass of such a rank; refers to `inputs`.
TensorPass TensorPassOf(const MemoryInputs& inputs);

/// Bytes that tensor-parallel ranks exchange in a pass, as payloads of their collectives
/// (rank_traffic.h), between the ranks of a row of the grid or of a column. Without sequence
/// parallelism, whose reduce-scatters and all-gathers put the same bytes on the wire.
struct TensorTraffic {
  int64_t sums = 0;  ///< All-reduces.
  int64_t summed = 0;
  int64_t gathers = 0;  ///< All-gathers: of the softmax, or of norms.
  int64_t gathered = 0;
};

/// Traffic between the ranks of a row, which have other heads, inner columns and tokens.
TensorTraffic TrafficOfRow(const TensorPass& pass);

/// Traffic between the ranks of a column, which have other features of the residual stream; nothing
/// where there is one row.
TensorTraffic TrafficOfColumn(const TensorPass& pass);

/// A grid for `tensor` ranks.
struct TensorParallel2d {
  int64_t rows = 1;
  int64_t sent = 0;  ///< Bytes that a rank sends in a pass.
};

/// All grids of pass.shape.tensor ranks that this model can be computed on, the one in which a
/// rank sends least first: what the communication model of AxoNN (Singh et al. 2023, arXiv
/// 2305.13525) ranks them by, for ranks between which all links are alike.
std::vector<TensorParallel2d> RankTensorParallel2d(const TensorPass& pass);

}  // namespace weft
