#include "worker/engine/nn/ulysses_attention.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gather_rows/gather_rows.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

using kernels::AttentionBackwardArgs;
using kernels::AttentionForwardArgs;

// Columns [begin, begin + count) of rows that may be strided.
TensorView Columns(const TensorView& rows, int64_t begin, int64_t count) {
  TensorView columns = rows;
  columns.shape = {rows.shape[0], count};
  columns.data = static_cast<char*>(rows.data) + static_cast<size_t>(begin) * DTypeSize(rows.dtype);
  return columns;
}

// Which heads and tokens are where.
struct Layout {
  int64_t ranks, head_dim;
  int64_t heads, kv_heads;  // of a rank while it attends
  int64_t all_kv_heads;
  int64_t tokens, length;  // that a rank has, and of each sequence

  Layout(const AttentionForwardArgs& own, int64_t degree)
      : ranks(degree),
        head_dim(own.q.shape[1] / own.heads),
        heads(own.heads / degree),
        kv_heads(std::max<int64_t>(own.kv_heads / degree, 1)),
        all_kv_heads(own.kv_heads),
        tokens(own.q.shape[0]),
        length(own.length) {}

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // The first head of keys that rank `p` attends with.
  int64_t FirstKvHead(int64_t p) const { return p * all_kv_heads / ranks; }

  // Columns of the heads of rank `p`.
  TensorView Queries(const TensorView& rows, int64_t p) const {
    return Columns(rows, p * q_width(), q_width());
  }
  TensorView Keys(const TensorView& rows, int64_t p) const {
    return Columns(rows, FirstKvHead(p) * head_dim, kv_width());
  }
};

// Validation (CheckContextParallel and the table of refusals) and ChunksOfRank refuse all else.
void Check(const AttentionForwardArgs& own, int64_t ranks) {
  WEFT_CHECK(own.causal && own.window == 0, "context-parallel attention is causal, no window");
  WEFT_CHECK(own.length > 0 && own.length % 2 == 0, "a rank has two equal chunks of a sequence");
  WEFT_CHECK(own.heads % ranks == 0 && (own.kv_heads % ranks == 0 || ranks % own.kv_heads == 0),
             "heads are partitioned over the ranks");
}

// Exchanges tokens for heads, and back.
class HeadExchange {
 public:
  static Result<HeadExchange> New(Context& context, const ContextParallel& ranks,
                                  const AttentionForwardArgs& own) {
    HeadExchange exchange(context, ranks, Layout(own, ranks.degree()));
    WEFT_RETURN_IF_ERROR(exchange.MakeOrder());
    return exchange;
  }

  const Layout& layout() const { return layout_; }
  const Tensor& starts() const { return starts_; }

  // Room for the parts of all ranks, of `width` columns each.
  Result<Tensor> Room(DType dtype, int64_t width) const {
    return Tensor::New(*context_, Component::kWorkspace, dtype,
                       {layout_.ranks * layout_.tokens, width});
  }
  Tensor PartOf(const Tensor& parts, int64_t p) const {
    return parts.Rows(p * layout_.tokens, layout_.tokens);
  }

  // Part p goes to rank p; returns all tokens of the own heads, sequence by sequence.
  Result<Tensor> TokensForHeads(Tensor parts) const {
    WEFT_ASSIGN_OR_RETURN(Tensor all, Room(parts.dtype(), parts.shape()[-1]));
    WEFT_RETURN_IF_ERROR(Exchange(parts, all));
    WEFT_RETURN_IF_ERROR(kernels::GatherRows(context_->stream, {all, order_, parts}));
    return parts;
  }
  // The other way: `tokens` of the own heads become parts, part p what rank p has made of the
  // own tokens.
  Result<Tensor> HeadsForTokens(Tensor tokens) const {
    WEFT_ASSIGN_OR_RETURN(Tensor parts, Room(tokens.dtype(), tokens.shape()[-1]));
    WEFT_RETURN_IF_ERROR(kernels::ScatterRows(context_->stream, {tokens, order_, parts}));
    WEFT_RETURN_IF_ERROR(Exchange(parts, tokens));
    return tokens;
  }

 private:
  HeadExchange(Context& context, const ContextParallel& ranks, const Layout& layout)
      : context_(&context), ranks_(&ranks), layout_(layout) {}

  Status Exchange(const Tensor& from, const Tensor& to) const {
    return ranks_->group()
        .AllToAll(context_->stream, from, to, "tokens for heads")
        .Wait(context_->stream);
  }

  // Where each token of the sequences is, among those that come rank by rank.
  Status MakeOrder() {
    const int64_t n = layout_.ranks, chunk = layout_.length / 2;
    const int64_t sequences = layout_.tokens / layout_.length;
    std::vector<int32_t> order, starts;
    for (int64_t s = 0; s < sequences; ++s) {
      starts.push_back(static_cast<int32_t>(order.size()));
      for (int64_t c = 0; c < 2 * n; ++c) {
        const int64_t rank = c < n ? c : 2 * n - 1 - c;
        const int64_t first = rank * layout_.tokens + s * layout_.length + (c < n ? 0 : chunk);
        for (int64_t i = 0; i < chunk; ++i) order.push_back(static_cast<int32_t>(first + i));
      }
    }
    starts.push_back(static_cast<int32_t>(order.size()));
    WEFT_RETURN_IF_ERROR(Send(order, order_));
    return Send(starts, starts_);
  }
  Status Send(const std::vector<int32_t>& values, Tensor& to) {
    WEFT_ASSIGN_OR_RETURN(to, Tensor::New(*context_, Component::kWorkspace, DType::kI32,
                                          {static_cast<int64_t>(values.size())}));
    return Upload(context_->stream, values.data(), to);
  }

  Context* context_;
  const ContextParallel* ranks_;
  Layout layout_;
  Tensor order_;   // [tokens of all ranks] i32
  Tensor starts_;  // [sequences + 1] i32
};

// The own tokens' queries, keys and values in the columns of each rank's part.
Status PackQkv(Context& context, const HeadExchange& exchange, const AttentionForwardArgs& own,
               const Tensor& parts) {
  const Layout& layout = exchange.layout();
  for (int64_t p = 0; p < layout.ranks; ++p) {
    const Tensor part = exchange.PartOf(parts, p);
    const int64_t q = layout.q_width(), kv = layout.kv_width();
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, layout.Queries(own.q, p), part.Columns(0, q)));
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, layout.Keys(own.k, p), part.Columns(q, kv)));
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, layout.Keys(own.v, p), part.Columns(q + kv, kv)));
  }
  return OkStatus();
}

// The attention of the own heads over all tokens, which are the columns of `tokens`.
AttentionForwardArgs OfOwnHeads(const HeadExchange& exchange, const AttentionForwardArgs& own,
                                const Tensor& tokens, const TensorView& out) {
  const Layout& layout = exchange.layout();
  const int64_t q = layout.q_width(), kv = layout.kv_width();
  AttentionForwardArgs args = own;
  args.q = tokens.Columns(0, q);
  args.k = tokens.Columns(q, kv);
  args.v = tokens.Columns(q + kv, kv);
  args.sequence_starts = exchange.starts();
  args.heads = layout.heads;
  args.kv_heads = layout.kv_heads;
  args.length = layout.length * layout.ranks;
  args.out = out;
  args.log_sum_exp.shape = {layout.heads, layout.tokens * layout.ranks};
  args.log_sum_exp.row_stride = layout.tokens * layout.ranks;
  return args;
}

// Gradients of the ranks for the own keys, or values: columns [column, ...) of their parts.
// Ranks with the same head have a partial sum each.
Status TakeKeyGradients(Context& context, const HeadExchange& exchange, const Tensor& parts,
                        int64_t column, const TensorView& to) {
  const Layout& layout = exchange.layout();
  const int64_t width = layout.kv_width();
  WEFT_ASSIGN_OR_RETURN(const Tensor sum, Tensor::New(context, Component::kWorkspace, parts.dtype(),
                                                      {layout.tokens, width}));
  WEFT_ASSIGN_OR_RETURN(const Tensor addend,
                        Tensor::New(context, Component::kWorkspace, parts.dtype(), sum.shape()));
  for (int64_t p = 0; p < layout.ranks; ++p) {
    const bool first = p == 0 || layout.FirstKvHead(p) != layout.FirstKvHead(p - 1);
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, exchange.PartOf(parts, p).Columns(column, width),
                                  first ? sum : addend));
    if (!first) WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {sum, addend, sum}));
    if (p + 1 < layout.ranks && layout.FirstKvHead(p + 1) == layout.FirstKvHead(p)) continue;
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, sum, layout.Keys(to, p)));
  }
  return OkStatus();
}

}  // namespace

Status UlyssesAttentionForward(Context& context, const ContextParallel& ranks,
                               const AttentionForwardArgs& own) {
  Check(own, ranks.degree());
  WEFT_ASSIGN_OR_RETURN(const HeadExchange exchange, HeadExchange::New(context, ranks, own));
  const Layout& layout = exchange.layout();
  const DType dtype = own.q.dtype;
  Tensor tokens;
  {
    WEFT_ASSIGN_OR_RETURN(Tensor parts, exchange.Room(dtype, layout.qkv_width()));
    WEFT_RETURN_IF_ERROR(PackQkv(context, exchange, own, parts));
    WEFT_ASSIGN_OR_RETURN(tokens, exchange.TokensForHeads(std::move(parts)));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor out, exchange.Room(dtype, layout.q_width()));
  WEFT_RETURN_IF_ERROR(
      kernels::AttentionForward(context.stream, OfOwnHeads(exchange, own, tokens, out)));
  tokens = {};
  WEFT_ASSIGN_OR_RETURN(out, exchange.HeadsForTokens(std::move(out)));
  for (int64_t p = 0; p < layout.ranks; ++p) {
    WEFT_RETURN_IF_ERROR(
        CopyRows(context.stream, exchange.PartOf(out, p), layout.Queries(own.out, p)));
  }
  return OkStatus();
}

Status UlyssesAttentionBackward(Context& context, const ContextParallel& ranks,
                                const AttentionBackwardArgs& own) {
  const AttentionForwardArgs& forward = own.forward;
  Check(forward, ranks.degree());
  WEFT_ASSIGN_OR_RETURN(const HeadExchange exchange, HeadExchange::New(context, ranks, forward));
  const Layout& layout = exchange.layout();
  const DType dtype = forward.q.dtype;
  const int64_t q = layout.q_width(), qkv = layout.qkv_width(), kv = layout.kv_width();
  Tensor tokens;  // queries, keys, values, results and their gradients
  {
    WEFT_ASSIGN_OR_RETURN(Tensor parts, exchange.Room(dtype, qkv + 2 * q));
    WEFT_RETURN_IF_ERROR(PackQkv(context, exchange, forward, parts));
    for (int64_t p = 0; p < layout.ranks; ++p) {
      const Tensor part = exchange.PartOf(parts, p);
      WEFT_RETURN_IF_ERROR(
          CopyRows(context.stream, layout.Queries(forward.out, p), part.Columns(qkv, q)));
      WEFT_RETURN_IF_ERROR(
          CopyRows(context.stream, layout.Queries(own.dout, p), part.Columns(qkv + q, q)));
    }
    WEFT_ASSIGN_OR_RETURN(tokens, exchange.TokensForHeads(std::move(parts)));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor gradients, exchange.Room(dtype, qkv));
  WEFT_RETURN_IF_ERROR(kernels::AttentionBackward(
      context.stream, {.forward = OfOwnHeads(exchange, forward, tokens, tokens.Columns(qkv, q)),
                       .dout = tokens.Columns(qkv + q, q),
                       .dq = gradients.Columns(0, q),
                       .dk = gradients.Columns(q, kv),
                       .dv = gradients.Columns(q + kv, kv)}));
  tokens = {};
  WEFT_ASSIGN_OR_RETURN(gradients, exchange.HeadsForTokens(std::move(gradients)));
  for (int64_t p = 0; p < layout.ranks; ++p) {
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, exchange.PartOf(gradients, p).Columns(0, q),
                                  layout.Queries(own.dq, p)));
  }
  WEFT_RETURN_IF_ERROR(TakeKeyGradients(context, exchange, gradients, q, own.dk));
  return TakeKeyGradients(context, exchange, gradients, q + kv, own.dv);
}

}  // namespace weft::engine
