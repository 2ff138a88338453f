#include "kernels/attention_part/attention_part_check.h"

#include <cmath>
#include <numeric>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// As device memory is aligned.
int64_t Aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Status CheckInputs(const Stream& stream, const char* op, const AttendPartArgs& args) {
  ArgumentCheck check(stream, op);
  check.That(args.q.shape.rank == 2, "q is not a matrix")
      .That(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0,
            "heads is not a multiple of kv_heads");
  if (!check.status().ok()) return check.status();
  const int64_t tokens = args.q.shape[0], width = args.q.shape[1], head_dim = width / args.heads;
  const DType dtype = args.q.dtype;
  return check
      .That(width % args.heads == 0 && head_dim % 8 == 0 && head_dim >= 8 && head_dim <= 256,
            "q does not have heads * head_dim columns with head_dim a multiple of 8 up to 256")
      .That(args.scale > 0 && std::isfinite(args.scale), "scale is not a positive number")
      .That(args.length > 0 && tokens % args.length == 0, "length is not that of every sequence")
      .That(0 <= args.query_begin && args.query_begin <= args.query_end &&
                args.query_end <= args.length,
            "queries are not a range within the length")
      .That(0 <= args.key_begin && args.key_begin <= args.key_end && args.key_end <= args.length,
            "keys are not a range within the length")
      .Tensor("q", args.q, {tokens, width}, kFloatTypes)
      .Tensor("k", args.k, {tokens, args.kv_heads * head_dim}, {dtype})
      .Tensor("v", args.v, {tokens, args.kv_heads * head_dim}, {dtype})
      .ContiguousTensor("log_sum_exp", args.log_sum_exp, {args.heads, tokens}, {DType::kF32})
      .That(stream.device.type == DeviceType::kCpu ||
                (args.workspace && args.workspace.shape.rank == 1 &&
                 args.workspace.shape[0] >= AttendPartWorkspaceBytes(args)),
            "the workspace is smaller than AttendPartWorkspaceBytes")
      .status();
}

}  // namespace

AttendPartBlocks BlocksOf(const AttendPartArgs& args) {
  const int64_t element = static_cast<int64_t>(DTypeSize(args.q.dtype));
  AttendPartBlocks blocks{
      .tokens = std::gcd(args.query_end - args.query_begin, args.key_end - args.key_begin)};
  blocks.log_sum_exp = Aligned(2 * static_cast<int64_t>(sizeof(int32_t)));
  blocks.out = blocks.log_sum_exp +
               Aligned(args.heads * blocks.tokens * static_cast<int64_t>(sizeof(float)));
  blocks.dk = blocks.out + Aligned(blocks.tokens * args.q.shape[1] * element);
  blocks.dv = blocks.dk + Aligned(blocks.tokens * args.k.shape[1] * element);
  blocks.bytes = blocks.dv + Aligned(blocks.tokens * args.k.shape[1] * element);
  return blocks;
}

int64_t AttendPartWorkspaceBytes(const AttendPartArgs& args) {
  return BlocksOf(args).bytes;
}

Status CheckAttendPart(const Stream& stream, const AttendPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckInputs(stream, "AttendPart", args));
  return ArgumentCheck(stream, "AttendPart")
      .Tensor("out", args.out, args.q.shape, {DType::kF32})
      .status();
}

Status CheckAttendPartBackward(const Stream& stream, const AttendPartBackwardArgs& args) {
  const AttendPartArgs& part = args.part;
  WEFT_RETURN_IF_ERROR(CheckInputs(stream, "AttendPartBackward", part));
  return ArgumentCheck(stream, "AttendPartBackward")
      .Tensor("out", args.out, part.q.shape, {part.q.dtype})
      .Tensor("dout", args.dout, part.q.shape, {part.q.dtype})
      .Tensor("dq", args.dq, part.q.shape, {DType::kF32})
      .Tensor("dk", args.dk, part.k.shape, {DType::kF32})
      .Tensor("dv", args.dv, part.v.shape, {DType::kF32})
      .status();
}

}  // namespace weft::kernels
