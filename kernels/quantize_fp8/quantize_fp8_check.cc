#include "kernels/quantize_fp8/quantize_fp8_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckQuantizeFp8(const Stream& stream, const QuantizeFp8Args& args) {
  ArgumentCheck check(stream, "QuantizeFp8");
  check.That(args.x.shape.rank == 2, "x must be a matrix");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  check.Tensor("x", args.x, args.x.shape, {DType::kF32, DType::kBF16});
  if (args.q) {
    check.ContiguousTensor("q", args.q, args.x.shape, {DType::kF8E4M3, DType::kF8E5M2});
  }
  if (args.transposed) {
    const TensorView& t = args.transposed;
    check.That(t.shape.rank == 2 && t.shape[1] >= rows,
               "transposed has fewer columns than x has rows");
    WEFT_RETURN_IF_ERROR(check.status());
    check.ContiguousTensor("transposed", t, Shape{columns, t.shape[1]},
                           {DType::kF8E4M3, DType::kF8E5M2});
    check.That(!args.q || args.q.dtype == t.dtype, "q and transposed have different types");
  }
  if (args.q || args.transposed) {
    check.ContiguousTensor("scale", args.scale, Shape{1}, {DType::kF32});
  }
  if (args.amax) check.ContiguousTensor("amax", args.amax, Shape{1}, {DType::kF32});
  return check.status();
}

Status CheckUpdateFp8Scales(const Stream& stream, const UpdateFp8ScalesArgs& args) {
  ArgumentCheck check(stream, "UpdateFp8Scales");
  check.That(args.amax.shape.rank == 1 && args.history.shape.rank == 2,
             "amax must be a vector and history a matrix");
  WEFT_RETURN_IF_ERROR(check.status());
  const Shape tensors{args.amax.shape[0]};
  return check.ContiguousTensor("amax", args.amax, tensors, {DType::kF32})
      .ContiguousTensor("history", args.history, Shape{tensors[0], args.history.shape[1]},
                        {DType::kF32})
      .ContiguousTensor("largest_code", args.largest_code, tensors, {DType::kF32})
      .ContiguousTensor("scale", args.scale, tensors, {DType::kF32})
      .ContiguousTensor("inverse_scale", args.inverse_scale, tensors, {DType::kF32})
      .That(args.slot >= 0 && args.slot < args.history.shape[1], "slot is not in the history")
      .That(args.margin >= 0 && args.margin <= 32, "margin is not 0 to 32")
      .status();
}

}  // namespace weft::kernels
