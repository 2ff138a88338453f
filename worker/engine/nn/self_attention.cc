#include "worker/engine/nn/self_attention.h"

#include <cmath>

#include "kernels/attention/attention.h"
#include "worker/engine/nn/cached_attention.h"

namespace weft::engine {

SelfAttention::SelfAttention(ParameterSet* parameters, const std::string& name, int64_t width,
                             int64_t heads, double deviation, double output_deviation,
                             DType compute)
    : qkv_(parameters, name + ".c_attn", width, 3 * width, deviation, compute),
      output_(parameters, name + ".c_proj", width, width, output_deviation, compute),
      width_(width),
      heads_(heads) {}

Status SelfAttention::Pack(Context& context) {
  WEFT_RETURN_IF_ERROR(qkv_.Pack(context));
  return output_.Pack(context);
}

Result<Value> SelfAttention::Forward(Context& context, Tape& tape, const Value& x,
                                     const TokenBatch& batch, KeyValueCache* cache) const {
  WEFT_ASSIGN_OR_RETURN(Value qkv, qkv_.Forward(context, tape, x));
  if (cache != nullptr && cache->length > 0) {
    WEFT_ASSIGN_OR_RETURN(Tensor attended, AttendCached(context, qkv.tensor, heads_, *cache));
    return output_.Forward(context, tape, {std::move(attended), Value::kNoNode});
  }
  WEFT_ASSIGN_OR_RETURN(Value attended, Attend(context, tape, qkv, batch));
  if (cache != nullptr) AppendKeysAndValues(qkv.tensor, *cache);
  return output_.Forward(context, tape, attended);
}

Result<Value> SelfAttention::Attend(Context& context, Tape& tape, const Value& qkv,
                                    const TokenBatch& batch) const {
  ProfileScope scope(context.profiler, "attention forward");
  const DType dtype = qkv.tensor.dtype();
  const auto args_for = [this](const Tensor& packed, const Tensor& starts, const Tensor& out,
                               const Tensor& log_sum_exp) {
    const int64_t head_dim = width_ / heads_;
    return kernels::AttentionForwardArgs{.q = packed.Columns(0, width_),
                                         .k = packed.Columns(width_, width_),
                                         .v = packed.Columns(2 * width_, width_),
                                         .sequence_starts = starts,
                                         .heads = heads_,
                                         .kv_heads = heads_,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                         .causal = true,
                                         .out = out,
                                         .log_sum_exp = log_sum_exp};
  };
  WEFT_ASSIGN_OR_RETURN(Tensor out,
                        Tensor::New(context, tape.component(), dtype, {batch.count, width_}));
  WEFT_ASSIGN_OR_RETURN(Tensor log_sum_exp,
                        Tensor::New(context, tape.component(), DType::kF32, {heads_, batch.count}));
  WEFT_RETURN_IF_ERROR(kernels::AttentionForward(
      context.stream, args_for(qkv.tensor, batch.sequence_starts, out, log_sum_exp)));
  Value y = tape.NewValue(out);
  if (!tape.recording()) return y;
  tape.Record("attention backward",
              [args_for, qkv_node = qkv.node, y_node = y.node, starts = batch.sequence_starts,
               saved_qkv = Tape::Save(qkv.tensor), saved_out = Tape::Save(std::move(out)),
               log_sum_exp = std::move(log_sum_exp)](Context& ctx, Tape& t) -> Status {
                const Tensor dout = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor packed, saved_qkv.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor attended, saved_out.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor dqkv, Tensor::New(ctx, Component::kWorkspace,
                                                               packed.dtype(), packed.shape()));
                const int64_t width = attended.shape()[-1];
                WEFT_RETURN_IF_ERROR(kernels::AttentionBackward(
                    ctx.stream, {.forward = args_for(packed, starts, attended, log_sum_exp),
                                 .dout = dout,
                                 .dq = dqkv.Columns(0, width),
                                 .dk = dqkv.Columns(width, width),
                                 .dv = dqkv.Columns(2 * width, width)}));
                return t.AddGradient(ctx, qkv_node, std::move(dqkv));
              });
  return y;
}

}  // namespace weft::engine
