#include "kernels/layer_norm/layer_norm_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckLayerNormForward(const Stream& stream, const LayerNormForwardArgs& args) {
  const TensorView& x = args.residual;
  ArgumentCheck check(stream, "LayerNormForward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "residual has no columns");
  if (!check.status().ok()) return check.status();
  Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("residual", x, x.shape, kFloatTypes)
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("bias", args.bias, columns, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("mean", args.mean, rows, {DType::kF32})
      .ContiguousTensor("rstd", args.rstd, rows, {DType::kF32});
  if (args.delta) {
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("residual_out", args.residual_out, x.shape, {x.dtype});
  }
  return check.status();
}

Status CheckLayerNormBackward(const Stream& stream, const LayerNormBackwardArgs& args) {
  const TensorView& x = args.x;
  ArgumentCheck check(stream, "LayerNormBackward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", args.dy, x.shape, {x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("mean", args.mean, rows, {DType::kF32})
      .ContiguousTensor("rstd", args.rstd, rows, {DType::kF32})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, columns, {DType::kF32});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  return check.status();
}

}  // namespace weft::kernels
