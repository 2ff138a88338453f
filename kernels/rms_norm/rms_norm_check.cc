#include "kernels/rms_norm/rms_norm_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckRmsNormForward(const Stream& stream, const RmsNormForwardArgs& args) {
  const TensorView& x = args.residual;
  ArgumentCheck check(stream, "RmsNormForward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "residual has no columns");
  if (!check.status().ok()) return check.status();
  check.ContiguousTensor("residual", x, x.shape, kFloatTypes)
      .ContiguousTensor("weight", args.weight, {x.shape[-1]}, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("rrms", args.rrms, {x.shape.Rows()}, {DType::kF32});
  if (args.delta) {
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("residual_out", args.residual_out, x.shape, {x.dtype});
  }
  return check.status();
}

Status CheckRmsNormBackward(const Stream& stream, const RmsNormBackwardArgs& args) {
  const TensorView& x = args.x;
  ArgumentCheck check(stream, "RmsNormBackward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  Shape columns = {x.shape[-1]};
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", args.dy, x.shape, {x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("rrms", args.rrms, {x.shape.Rows()}, {DType::kF32})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  return check.status();
}

}  // namespace weft::kernels
