#include "worker/engine/nn/self_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "worker/engine/nn/cached_attention.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/nn/ring_attention.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/nn/ulysses_attention.h"

namespace weft::engine {
namespace {

// [q | k | v] columns, or their gradients, of one tensor.
struct Projections {
  Tensor q, k, v;

  Projections(const Tensor& qkv, int64_t q_width, int64_t kv_width)
      : q(qkv.Columns(0, q_width)),
        k(qkv.Columns(q_width, kv_width)),
        v(qkv.Columns(q_width + kv_width, kv_width)) {}
};

// Heads that are here, of `heads` in all.
int64_t OwnHeads(int64_t heads, const TensorParallel* ranks) {
  if (ranks == nullptr) return heads;
  WEFT_CHECK(heads % ranks->columns() == 0, "each rank has as many heads");
  return heads / ranks->columns();
}

LinearOptions QkvOptions(const SelfAttentionOptions& o, const TensorParallel* ranks) {
  const int64_t q_width = o.heads * o.head_dim;
  const int64_t kv_width = o.kv_heads * o.head_dim;
  const auto output = [&](const std::string& name, const std::vector<int64_t>& blocks,
                          ParameterRole role) {
    ParameterList::StackedPart part{
        name, std::accumulate(blocks.begin(), blocks.end(), int64_t{0}), role, {}};
    if (ranks != nullptr) {
      part.shard = ranks->Rows(blocks, o.head_dim);
      part.rows = part.shard.size();
    }
    return part;
  };
  LinearOptions options{{}, o.width, o.qkv_bias};
  if (ranks != nullptr) {
    options.inputs = ranks->FeatureColumns(o.width);
    options.in_features = ranks->Features(o.width);
  }
  if (o.qkv.size() == 1) {
    options.outputs = {
        output(o.qkv[0], {q_width, kv_width, kv_width}, ParameterRole::kQueriesKeysValues)};
  } else {
    WEFT_CHECK(o.qkv.size() == 3, "one name for queries, keys and values together, or three");
    options.outputs = {output(o.qkv[0], {q_width}, ParameterRole::kQueriesKeys),
                       output(o.qkv[1], {kv_width}, ParameterRole::kQueriesKeys),
                       output(o.qkv[2], {kv_width}, ParameterRole::kValues)};
  }
  return options;
}

/// The length of all sequences; 0 where they differ or are not known.
int64_t CommonLength(const std::vector<int32_t>* starts) {
  if (starts == nullptr || starts->size() < 2) return 0;
  const int32_t length = (*starts)[1] - (*starts)[0];
  for (size_t s = 1; s + 1 < starts->size(); ++s) {
    if ((*starts)[s + 1] - (*starts)[s] != length) return 0;
  }
  return length;
}

LinearOptions OutputOptions(const SelfAttentionOptions& o, const TensorParallel* ranks) {
  LinearOptions options{
      {{o.output, o.width, ParameterRole::kAttentionOutput}}, o.heads * o.head_dim, o.output_bias};
  if (ranks == nullptr) return options;
  options.outputs[0].shard = ranks->FeatureRows(o.width);
  options.outputs[0].rows = ranks->Features(o.width);
  options.inputs = ranks->Columns(options.in_features, o.head_dim);
  options.in_features = options.inputs.size();
  return options;
}

/// Multiplications and additions of one product over all pairs of a query and a key, for the
/// profiler; a forward pass has two such products, a backward pass five.
double ProductFlops(const std::vector<int32_t>& starts, bool causal, int64_t window,
                    int64_t width) {
  double pairs = 0;
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const double length = starts[s + 1] - starts[s];
    if (!causal) {
      pairs += length * length;
      continue;
    }
    const double seen = window > 0 ? std::min(static_cast<double>(window), length) : length;
    pairs += seen * (seen + 1) / 2 + (length - seen) * seen;
  }
  return 2.0 * pairs * static_cast<double>(width);
}

// By the context-parallel ranks, or by this one alone.
Status AttendForward(Context& context, const ContextParallel* ranks,
                     const kernels::AttentionForwardArgs& args) {
  if (ranks == nullptr) return kernels::AttentionForward(context.stream, args);
  return ranks->ulysses() ? UlyssesAttentionForward(context, *ranks, args)
                          : RingAttentionForward(context, *ranks, args);
}

Status AttendBackward(Context& context, const ContextParallel* ranks,
                      const kernels::AttentionBackwardArgs& args) {
  if (ranks == nullptr) return kernels::AttentionBackward(context.stream, args);
  return ranks->ulysses() ? UlyssesAttentionBackward(context, *ranks, args)
                          : RingAttentionBackward(context, *ranks, args);
}

}  // namespace

SelfAttention::SelfAttention(ParameterSet* parameters, const SelfAttentionOptions& o,
                             const ProductOptions& products)
    : tensor_(products.tensor),
      context_(o.context),
      qkv_(parameters, QkvOptions(o, tensor_), products),
      output_(parameters, OutputOptions(o, tensor_), products),
      heads_(OwnHeads(o.heads, tensor_)),
      kv_heads_(OwnHeads(o.kv_heads, tensor_)),
      head_dim_(o.head_dim),
      logit_scale_(static_cast<float>(o.logit_scale) / std::sqrt(static_cast<float>(o.head_dim))),
      causal_(o.causal),
      window_(o.window),
      rotary_(o.rotary),
      dropout_(static_cast<float>(o.dropout)),
      dropout_site_(SiteHash(o.dropout_site.c_str())) {
  WEFT_CHECK(context_ == nullptr || dropout_ == 0, "context-parallel ranks drop no weights");
  if (o.qkv.size() > 1 || !qkv_.has_weight()) return;
  const int64_t q_width = heads_ * o.head_dim, kv_width = kv_heads_ * o.head_dim;
  parameters->SetParts(qkv_.weight_index(), {q_width, kv_width, kv_width});
}

Status SelfAttention::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(qkv_.Pack(context, what));
  return output_.Pack(context, what);
}

Result<Value> SelfAttention::Forward(Context& context, Tape& tape, const Value& x,
                                     const TokenBatch& batch, int64_t use, KeyValueCache* cache,
                                     const VirtualTokens* prefix) const {
  WEFT_ASSIGN_OR_RETURN(Value qkv, Project(context, tape, x, batch, prefix));
  if (cache != nullptr) {
    const bool first = cache->length == 0;
    const Projections p(qkv.tensor, heads_ * head_dim_, kv_heads_ * head_dim_);
    WEFT_RETURN_IF_ERROR(AppendKeysAndValues(context, p.k, p.v, *cache));
    if (!first) {
      WEFT_ASSIGN_OR_RETURN(Tensor attended, AttendCached(context, p.q, heads_, kv_heads_,
                                                          logit_scale_, window_, *cache));
      return output_.Forward(context, tape, {std::move(attended), Value::kNoNode});
    }
  }
  WEFT_ASSIGN_OR_RETURN(Attended attended, AttendTokens(context, tape, qkv, batch, use));
  return Output(context, tape, std::move(attended.value), std::move(attended.saved));
}

Result<Value> SelfAttention::Output(Context& context, Tape& tape, Value attended,
                                    SavedTensor saved) const {
  const Value in = CopyToFeatureRegion(tape, tensor_, std::move(attended));
  WEFT_ASSIGN_OR_RETURN(Value out, output_.Forward(context, tape, in, std::move(saved)));
  return ReduceFromTensorParallelRegion(context, tape, tensor_, std::move(out));
}

Result<Value> SelfAttention::Project(Context& context, Tape& tape, const Value& x,
                                     const TokenBatch& batch, const VirtualTokens* prefix) const {
  WEFT_ASSIGN_OR_RETURN(ShardsInput in, CopyToTensorParallelRegion(context, tape, tensor_, x));
  WEFT_ASSIGN_OR_RETURN(Value qkv, qkv_.Forward(context, tape, in.value, std::move(in.saved)));
  WEFT_ASSIGN_OR_RETURN(qkv, ReduceFromFeatureRegion(context, tape, tensor_, std::move(qkv)));
  if (batch.attended == nullptr) {
    WEFT_RETURN_IF_ERROR(Rotate(context, qkv.tensor, batch.positions, false));
    return qkv;
  }
  if (prefix != nullptr && batch.attended->added_rows) {
    WEFT_ASSIGN_OR_RETURN(qkv, PutPrefix(context, tape, qkv, *batch.attended, *prefix));
  }
  // At position 0 nothing is rotated: the prefix stays.
  WEFT_RETURN_IF_ERROR(Rotate(context, qkv.tensor, batch.attended->batch.positions, false));
  return qkv;
}

Result<Value> SelfAttention::PutPrefix(Context& context, Tape& tape, const Value& qkv,
                                       const TokenBatch::Extended& rows,
                                       const VirtualTokens& prefix) const {
  WEFT_ASSIGN_OR_RETURN(Value own, prefix.Forward(context, tape));
  WEFT_ASSIGN_OR_RETURN(own, RepeatRows(context, tape, own, rows.runs, heads_ * head_dim_,
                                        (heads_ + 2 * kv_heads_) * head_dim_));
  return MergeRows(context, tape, qkv, rows.token_rows, own, rows.added_rows);
}

Result<SelfAttention::Attended> SelfAttention::AttendTokens(Context& context, Tape& tape,
                                                            const Value& qkv,
                                                            const TokenBatch& batch,
                                                            int64_t use) const {
  if (batch.attended == nullptr) return Attend(context, tape, qkv, batch, use);
  WEFT_ASSIGN_OR_RETURN(Attended attended, Attend(context, tape, qkv, batch.attended->batch, use));
  if (!batch.attended->added_rows) return attended;
  attended.saved = {};
  WEFT_ASSIGN_OR_RETURN(attended.value,
                        GatherRows(context, tape, attended.value, batch.attended->token_rows));
  attended.saved = Tape::AsItIs(attended.value.tensor);
  if (tape.Records(attended.value)) {
    WEFT_ASSIGN_OR_RETURN(attended.saved, tape.Keep(context, attended.value.tensor));
  }
  return attended;
}

Result<Value> SelfAttention::ForwardRecomputed(Context& context, Tape& tape, const Value& x,
                                               const TokenBatch& batch, int64_t use,
                                               const VirtualTokens* prefix) const {
  const Segment inside = [this, batch, use, prefix](
                             Context& ctx, Tape& t,
                             const std::vector<Value>& inputs) -> Result<std::vector<Value>> {
    WEFT_ASSIGN_OR_RETURN(Value qkv, Project(ctx, t, inputs[0], batch, prefix));
    WEFT_ASSIGN_OR_RETURN(Attended attended, AttendTokens(ctx, t, qkv, batch, use));
    return std::vector<Value>{std::move(attended.value)};
  };
  WEFT_ASSIGN_OR_RETURN(RecomputedValues attended, RecomputeValues(context, tape, inside, {x}));
  return Output(context, tape, std::move(attended.values[0]), std::move(attended.saved[0]));
}

SelfAttention::HeadCounts SelfAttention::HeadsOf(const Tensor& qkv) const {
  const int64_t group = heads_ / kv_heads_;
  const int64_t keys = qkv.shape()[-1] / ((group + 2) * head_dim_);
  return {keys * group, keys};
}

Status SelfAttention::Rotate(Context& context, const Tensor& qkv, const Tensor& positions,
                             bool inverse) const {
  if (rotary_ == nullptr) return OkStatus();
  const HeadCounts heads = HeadsOf(qkv);
  return rotary_->Rotate(context, qkv.Columns(0, (heads.queries + heads.keys) * head_dim_),
                         positions, inverse);
}

double SelfAttention::Flops(const std::vector<int32_t>& starts, int64_t heads) const {
  const int64_t width = heads * head_dim_;
  if (context_ == nullptr) return ProductFlops(starts, causal_, window_, width);
  // The whole sequences, in equal parts.
  std::vector<int32_t> whole = starts;
  const auto ranks = static_cast<int32_t>(context_->degree());
  for (int32_t& start : whole) start *= ranks;
  return ProductFlops(whole, causal_, window_, width) / ranks;
}

kernels::AttentionDropout SelfAttention::DropoutOf(const Context& context, const Tape& tape,
                                                   const TokenBatch& batch, int64_t use) const {
  if (dropout_ == 0 || !tape.differentiable()) return {};
  const PhiloxKey key = DropoutKey(context, dropout_site_, use);
  return {.probability = dropout_,
          .key = key,
          .step = context.Number(key.step, &StepNumbers::step).at,
          .first_token = batch.first_token,
          .first_head = tensor_ != nullptr ? tensor_->column() * heads_ : 0};
}

Result<SelfAttention::Attended> SelfAttention::Attend(Context& context, Tape& tape,
                                                      const Value& qkv, const TokenBatch& batch,
                                                      int64_t use) const {
  ProfileScope scope(context.profiler, "attention forward");
  const DType dtype = qkv.tensor.dtype();
  const HeadCounts heads = HeadsOf(qkv.tensor);
  const int64_t width = heads.queries * head_dim_;
  const auto args_for = [this, heads, length = CommonLength(batch.starts_on_host.get()),
                         dropout = DropoutOf(context, tape, batch, use)](
                            const Tensor& packed, const Tensor& starts, const Tensor& out,
                            const Tensor& log_sum_exp) {
    const Projections p(packed, heads.queries * head_dim_, heads.keys * head_dim_);
    return kernels::AttentionForwardArgs{.q = p.q,
                                         .k = p.k,
                                         .v = p.v,
                                         .sequence_starts = starts,
                                         .heads = heads.queries,
                                         .kv_heads = heads.keys,
                                         .scale = logit_scale_,
                                         .causal = causal_,
                                         .window = window_,
                                         .out = out,
                                         .log_sum_exp = log_sum_exp,
                                         .length = length,
                                         .dropout = dropout};
  };
  WEFT_ASSIGN_OR_RETURN(Tensor out,
                        Tensor::New(context, tape.component(), dtype, {batch.count, width}));
  WEFT_ASSIGN_OR_RETURN(Tensor log_sum_exp, Tensor::New(context, tape.component(), DType::kF32,
                                                        {heads.queries, batch.count}));
  WEFT_RETURN_IF_ERROR(AttendForward(
      context, context_, args_for(qkv.tensor, batch.sequence_starts, out, log_sum_exp)));
  if (context.profiler != nullptr) {
    context.profiler->CountWork(2 * Flops(*batch.starts_on_host, heads.queries), 0);
  }
  Value y = tape.NewValue(out, qkv.needs_gradient());
  if (!tape.Records(y)) return Attended{y, Tape::AsItIs(y.tensor)};
  // The product after it reads the same: it is kept once.
  const ColumnPart part = tensor_ == nullptr
                              ? ColumnPart()
                              : ColumnPart{tensor_->columns() * width, tensor_->column() * width};
  WEFT_ASSIGN_OR_RETURN(SavedTensor kept, tape.Keep(context, out, part));
  out = {};
  tape.Record("attention backward",
              [this, args_for, heads, qkv_node = qkv.node, y_node = y.node,
               starts = batch.sequence_starts, host_starts = batch.starts_on_host,
               positions = batch.positions, saved_qkv = tape.Save(qkv.tensor), saved_out = kept,
               saved_sums = tape.Save(std::move(log_sum_exp))](Context& ctx, Tape& t) -> Status {
                const Tensor dout = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor packed, saved_qkv.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor attended, saved_out.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor sums, saved_sums.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor dqkv, Tensor::New(ctx, Component::kWorkspace,
                                                               packed.dtype(), packed.shape()));
                const Projections d(dqkv, heads.queries * head_dim_, heads.keys * head_dim_);
                const kernels::AttentionBackwardArgs args = {
                    .forward = args_for(packed, starts, attended, sums),
                    .dout = dout,
                    .dq = d.q,
                    .dk = d.k,
                    .dv = d.v};
                WEFT_RETURN_IF_ERROR(AttendBackward(ctx, context_, args));
                if (ctx.profiler != nullptr) {
                  ctx.profiler->CountWork(5 * Flops(*host_starts, heads.queries), 0);
                }
                WEFT_RETURN_IF_ERROR(Rotate(ctx, dqkv, positions, true));
                return t.AddGradient(ctx, qkv_node, std::move(dqkv));
              });
  return Attended{std::move(y), std::move(kept)};
}

}  // namespace weft::engine
