#include "kernels/attention/attention_check.h"

#include <cmath>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

Status CheckInputs(const Stream& stream, const char* op, const AttentionForwardArgs& args) {
  int64_t tokens = args.q.shape.rank == 2 ? args.q.shape[0] : 0;
  int64_t sequences = args.sequence_starts.shape.rank == 1 ? args.sequence_starts.shape[0] - 1 : -1;
  ArgumentCheck check(stream, op);
  check.That(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0,
             "heads is not a multiple of kv_heads");
  check.That(args.q.shape.rank == 2, "q is not a matrix");
  if (!check.status().ok()) return check.status();
  int64_t width = args.q.shape[1], head_dim = width / args.heads;
  DType dtype = args.q.dtype;
  return check
      .That(width % args.heads == 0 && head_dim % 8 == 0 && head_dim >= 8 && head_dim <= 256,
            "q does not have heads * head_dim columns with head_dim a multiple of 8 up to 256")
      .That(args.window >= 0 && (args.causal || args.window == 0),
            "window is negative, or given without causal")
      .That(args.scale > 0 && std::isfinite(args.scale), "scale is not a positive number")
      .That(sequences >= 0, "sequence_starts is not a vector of at least one element")
      .That(args.dropout.probability >= 0 && args.dropout.probability < 1,
            "dropout probability is not in [0, 1)")
      .That(args.dropout.first_head >= 0, "dropout first_head is negative")
      .That(args.length == 0 || (args.length > 0 && sequences * args.length == tokens),
            "length is not that of every sequence")
      .Tensor("q", args.q, {tokens, width}, kFloatTypes)
      .Tensor("k", args.k, {tokens, args.kv_heads * head_dim}, {dtype})
      .Tensor("v", args.v, {tokens, args.kv_heads * head_dim}, {dtype})
      .Tensor("out", args.out, {tokens, width}, {dtype})
      .ContiguousTensor("log_sum_exp", args.log_sum_exp, {args.heads, tokens}, {DType::kF32})
      .ContiguousTensor("sequence_starts", args.sequence_starts, {sequences + 1}, {DType::kI32})
      .status();
}

}  // namespace

Status CheckAttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  return CheckInputs(stream, "AttentionForward", args);
}

Status CheckAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionForwardArgs& forward = args.forward;
  WEFT_RETURN_IF_ERROR(CheckInputs(stream, "AttentionBackward", forward));
  return ArgumentCheck(stream, "AttentionBackward")
      .Tensor("dout", args.dout, forward.q.shape, {forward.q.dtype})
      .Tensor("dq", args.dq, forward.q.shape, {forward.q.dtype})
      .Tensor("dk", args.dk, forward.k.shape, {forward.q.dtype})
      .Tensor("dv", args.dv, forward.v.shape, {forward.q.dtype})
      .status();
}

AttentionDraw DrawOf(const AttentionDropout& dropout) {
  const auto threshold = static_cast<int32_t>(std::lround(dropout.probability * 0x1.0p16f));
  if (threshold == 0) return {};
  return {.key = dropout.key,
          .threshold = threshold,
          .kept = 1.0f - dropout.probability,
          .first_token = static_cast<uint32_t>(dropout.first_token),
          .first_head = static_cast<uint32_t>(dropout.first_head)};
}

}  // namespace weft::kernels
