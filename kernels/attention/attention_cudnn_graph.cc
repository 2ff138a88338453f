#include "kernels/attention/attention_cudnn_graph.h"

#include <string>
#include <utility>

namespace weft::kernels::cuda {
namespace {

using C = CudnnLibrary;
using Tensor = CudnnGraph::Tensor;
using Layout = CudnnGraph::Layout;

// Heads in a matrix of tokens: sequence, head, token, column.
Layout HeadsIn(const CudnnAttentionShape& s, int64_t heads, int64_t token_stride) {
  return {{s.sequences, heads, s.length, s.head_dim},
          {s.length * token_stride, s.head_dim, token_stride, 1}};
}

Layout Transposed(Layout layout) {
  std::swap(layout.sizes[2], layout.sizes[3]);
  std::swap(layout.strides[2], layout.strides[3]);
  return layout;
}

// What lies [sequences, heads, length, columns] one after another.
Layout Packed(const CudnnAttentionShape& s, int64_t columns) {
  const int64_t head = s.length * columns;
  return {{s.sequences, s.heads, s.length, columns}, {s.heads * head, head, columns, 1}};
}

// log_sum_exp is [heads, tokens].
Layout Sums(const CudnnAttentionShape& s) {
  return {{s.sequences, s.heads, s.length, 1}, {s.length, s.sequences * s.length, 1, 1}};
}

// The score of a query with a key that it does not see is `least`.
Tensor Masked(CudnnGraph& graph, const CudnnAttentionShape& s, Tensor scores,
              CudnnAttentionTensors& tensors) {
  if (!s.causal) return scores;
  const Layout layout = scores.layout;
  const auto index_of = [&](int64_t dimension) {
    const Tensor index = graph.Between(C::kInt32, layout);
    graph.Index(dimension, scores, index);
    return index;
  };
  const auto keep_where = [&](C::Pointwise mode, const Tensor& x, const Tensor& b) {
    const Tensor seen = graph.Between(C::kBoolean, layout);
    graph.Compare(mode, x, b, seen);
    const Tensor least = graph.Number(), masked = graph.Between(C::kFloat, layout);
    graph.Select(scores, least, seen, masked);
    scores = masked;
    return least.id;
  };
  {
    const Tensor query = index_of(2), key = index_of(3);
    tensors.least = keep_where(C::kGreaterOrEqual, query, key);
  }
  if (s.window > 0) {
    const Tensor query = index_of(2), key = index_of(3);
    const Tensor window = graph.Number(), last = graph.Between(C::kFloat, layout);
    graph.Pointwise(C::kAdd, key, window, last);
    tensors.window = window.id;
    tensors.window_least = keep_where(C::kGreater, last, query);
  }
  return scores;
}

}  // namespace

CudnnAttentionTensors DescribeAttentionForward(CudnnGraph& graph, const CudnnAttentionShape& s) {
  const C::DataType type = CudnnType(s.dtype);
  const Layout square = Packed(s, s.length), column = Packed(s, 1);
  CudnnAttentionTensors tensors = {};
  const auto between = [&](const Layout& layout) { return graph.Between(C::kFloat, layout); };

  const Tensor q = graph.Bound(type, HeadsIn(s, s.heads, s.q_stride));
  const Tensor k = graph.Bound(type, Transposed(HeadsIn(s, s.kv_heads, s.k_stride)));
  const Tensor products = between(square);
  graph.Multiply(q, k, products);
  const Tensor scale = graph.Number(), scaled = between(square);
  graph.Pointwise(C::kMul, products, scale, scaled);
  const Tensor scores = Masked(graph, s, scaled, tensors);

  const Tensor largest = between(column), below = between(square), powers = between(square);
  graph.Reduce(C::kMax, scores, largest);
  graph.Pointwise(C::kSub, scores, largest, below);
  graph.Pointwise(C::kExp, below, powers);
  const Tensor sum = between(column), log = between(column);
  graph.Reduce(C::kSum, powers, sum);
  graph.Pointwise(C::kLog, sum, log);
  const Tensor log_sum_exp = graph.Bound(C::kFloat, Sums(s));
  graph.Pointwise(C::kAdd, largest, log, log_sum_exp);
  // Rounded as an operand of the product.
  const Tensor probabilities = graph.Between(type, square);
  graph.Pointwise(C::kDiv, powers, sum, probabilities);

  const Tensor v = graph.Bound(type, HeadsIn(s, s.kv_heads, s.v_stride));
  const Tensor out = graph.Bound(type, HeadsIn(s, s.heads, s.out_stride));
  graph.Multiply(probabilities, v, out);

  tensors.q = q.id;
  tensors.k = k.id;
  tensors.v = v.id;
  tensors.out = out.id;
  tensors.log_sum_exp = log_sum_exp.id;
  tensors.scale = scale.id;
  return tensors;
}

CudnnAttentionTensors DescribeAttentionBackward(CudnnGraph& graph, const CudnnAttentionShape& s) {
  const C::DataType type = CudnnType(s.dtype);
  const Layout square = Packed(s, s.length), column = Packed(s, 1), rows = Packed(s, s.head_dim);
  CudnnAttentionTensors tensors = {};
  const auto between = [&](const Layout& layout) { return graph.Between(C::kFloat, layout); };

  // The mean of the gradients of a query's probabilities.
  const Tensor dout = graph.Bound(type, HeadsIn(s, s.heads, s.dout_stride));
  const Tensor out = graph.Bound(type, HeadsIn(s, s.heads, s.out_stride));
  const Tensor products = between(rows), sums = between(column);
  graph.Pointwise(C::kMul, dout, out, products);
  graph.Reduce(C::kSum, products, sums);
  const Tensor one = graph.Number(), mean = graph.Bound(C::kFloat, column);
  graph.Pointwise(C::kMul, sums, one, mean);

  // The probabilities again.
  const Tensor q = graph.Bound(type, HeadsIn(s, s.heads, s.q_stride));
  const Tensor k = graph.Bound(type, Transposed(HeadsIn(s, s.kv_heads, s.k_stride)));
  const Tensor dots = between(square), scaled = between(square), below = between(square);
  graph.Multiply(q, k, dots);
  const Tensor scale = graph.Number(), log_sum_exp = graph.Bound(C::kFloat, Sums(s));
  graph.Pointwise(C::kMul, dots, scale, scaled);
  graph.Pointwise(C::kSub, scaled, log_sum_exp, below);
  const Tensor masked = Masked(graph, s, below, tensors), probabilities = between(square);
  graph.Pointwise(C::kExp, masked, probabilities);

  // Gradients of keys and values: summed over the heads that share them.
  const auto gradient = [&](const Tensor& weights, const Tensor& vectors, int64_t stride) {
    const Tensor turned = graph.Between(type, Transposed(square));
    graph.Reshape(weights, turned);
    const Tensor sum = graph.Bound(type, HeadsIn(s, s.kv_heads, stride));
    if (s.heads == s.kv_heads) {
      graph.Multiply(turned, vectors, sum);
    } else {
      const Tensor of_heads = graph.Between(type, rows);
      graph.Multiply(turned, vectors, of_heads);
      graph.Reduce(C::kSum, of_heads, sum);
    }
    return sum.id;
  };
  tensors.dv = gradient(probabilities, dout, s.dv_stride);

  const Tensor v = graph.Bound(type, Transposed(HeadsIn(s, s.kv_heads, s.v_stride)));
  const Tensor by_values = between(square), spread = between(square), weighted = between(square);
  const Tensor dscores = between(square);
  graph.Multiply(dout, v, by_values);
  graph.Pointwise(C::kSub, by_values, mean, spread);
  graph.Pointwise(C::kMul, spread, probabilities, weighted);
  graph.Pointwise(C::kMul, weighted, scale, dscores);
  tensors.dk = gradient(dscores, q, s.dk_stride);

  // Blocks add to sums of dq in memory, which are rounded at the end.
  const Tensor keys = graph.Between(type, HeadsIn(s, s.kv_heads, s.k_stride));
  graph.Reshape(k, keys);
  const Tensor dq_sums = graph.Bound(C::kFloat, rows);
  graph.Multiply(dscores, keys, dq_sums);
  const Tensor dq = graph.Bound(type, HeadsIn(s, s.heads, s.dq_stride));
  graph.Pointwise(C::kIdentity, dq_sums, dq);

  tensors.q = q.id;
  tensors.k = k.id;
  tensors.v = v.id;
  tensors.out = out.id;
  tensors.log_sum_exp = log_sum_exp.id;
  tensors.scale = scale.id;
  tensors.one = one.id;
  tensors.dout = dout.id;
  tensors.dq = dq.id;
  tensors.mean = mean.id;
  tensors.dq_sums = dq_sums.id;
  return tensors;
}

Status CheckCudnnTakes(const CudnnAttentionShape& s, bool backward, size_t version) {
  const std::string number = std::to_string(version / 10000) + "." +
                             std::to_string(version / 100 % 100) + "." +
                             std::to_string(version % 100);
  constexpr size_t kOldest = 91002;
  if (version < kOldest) {
    return UnavailableError("cuDNN " + number +
                            " has known errors in attention; hint: 9.10.2 or later");
  }
  if (DTypeSize(s.dtype) != 2) return UnavailableError("cuDNN has no attention in f32");
  if (s.sequences == 0) return UnavailableError("there are no sequences");
  if (s.length < 2) return UnavailableError("cuDNN has no attention of single tokens");
  constexpr int64_t kAligned = 8, kBlock = 128;  // Elements of 16 bytes; keys.
  for (int64_t stride : {s.q_stride, s.k_stride, s.v_stride, s.out_stride, s.dout_stride,
                         s.dq_stride, s.dk_stride, s.dv_stride}) {
    if (stride % kAligned != 0) return UnavailableError("rows are not aligned to 16 bytes");
  }
  constexpr size_t kAnyLength = 91600;
  if (backward && s.length % kBlock != 0 && version < kAnyLength) {
    return UnavailableError("cuDNN " + number + " needs sequences of a multiple of 128 tokens in " +
                            "the backward pass; hint: 9.16 or later");
  }
  return OkStatus();
}

}  // namespace weft::kernels::cuda
