#pragma once

#include <compare>
#include <cstdint>

#include "common/dtype.h"
#include "common/status.h"
#include "kernels/cuda/cudnn_graph.h"

namespace weft::kernels::cuda {

/// Attention of sequences that are all as long, in 16-bit elements: what a plan of cuDNN is made
/// for. Strides are elements between tokens.
struct CudnnAttentionShape {
  DType dtype = DType::kBF16;
  bool causal = true;
  int64_t window = 0;  ///< Causal only; 0: all keys.
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t out_stride = 0;
  // The backward pass has these; the forward pass leaves them 0.
  int64_t dout_stride = 0;
  int64_t dq_stride = 0;
  int64_t dk_stride = 0;
  int64_t dv_stride = 0;

  auto operator<=>(const CudnnAttentionShape&) const = default;
};

/// Names of the graphs' tensors; 0 of those that a graph does not have.
struct CudnnAttentionTensors {
  int64_t q, k, v, out, log_sum_exp;
  int64_t scale;                ///< Number: of the scores
  int64_t least, window_least;  ///< Numbers: minus infinity, for masks
  int64_t window;               ///< Number: keys seen, where that is bounded
  int64_t one;                  ///< Number: 1
  int64_t dout, dq, dk, dv;
  int64_t mean;     ///< [sequences, heads, length] f32 in memory: sum(out * dout) of a query
  int64_t dq_sums;  ///< [sequences, heads, length, head_dim] f32 in memory: sums of dq
};

/// Describe attention as the patterns of matrix products, element-wise operations and reductions
/// that cuDNN knows as flash attention (its "graph patterns: fused attention fprop, bprop"; what
/// the numbers are of is FlashAttention's, Dao et al. 2022).
CudnnAttentionTensors DescribeAttentionForward(CudnnGraph& graph, const CudnnAttentionShape& shape);
CudnnAttentionTensors DescribeAttentionBackward(CudnnGraph& graph,
                                                const CudnnAttentionShape& shape);

/// kUnavailable, with the reason, of shapes that cuDNN of this version computes wrongly, or whose
/// alignment it does not check.
Status CheckCudnnTakes(const CudnnAttentionShape& shape, bool backward, size_t version);

}  // namespace weft::kernels::cuda
