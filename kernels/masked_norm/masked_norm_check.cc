#include "kernels/masked_norm/masked_norm_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckMaskedNormForward(const Stream& stream, const MaskedNormForwardArgs& args) {
  const TensorView& x = args.residual;
  ArgumentCheck check(stream, "MaskedNormForward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "residual has no columns");
  if (!check.status().ok()) return check.status();
  const Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("residual", x, x.shape, kFloatTypes)
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("mask", args.mask, columns, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32});
  if (args.bias) {
    check.ContiguousTensor("bias", args.bias, columns, {DType::kF32})
        .ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  }
  if (args.delta) {
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("residual_out", args.residual_out, x.shape, {x.dtype});
  }
  return check.status();
}

Status CheckMaskedNormBackward(const Stream& stream, const MaskedNormBackwardArgs& args) {
  const TensorView& x = args.x;
  ArgumentCheck check(stream, "MaskedNormBackward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  const Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", args.dy, x.shape, {x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("mask", args.mask, columns, {DType::kF32})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.mean) check.ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, columns, {DType::kF32});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  return check.status();
}

}  // namespace weft::kernels
