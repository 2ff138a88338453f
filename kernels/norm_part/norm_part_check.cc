#include "kernels/norm_part/norm_part_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// The sizes that all have in common; `numbers` of the planes `found`, of one part or several.
Status Check(const Stream& stream, const char* op, const TensorView& x, const TensorView& found,
             int64_t numbers) {
  ArgumentCheck check(stream, op);
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  check.That(found && found.shape.rank == 2 && found.shape[0] > 0 && found.shape[0] % numbers == 0,
             "not the numbers of whole parts");
  if (!check.status().ok()) return check.status();
  return check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("found", found, {found.shape[0], x.shape.Rows()}, {DType::kF32})
      .status();
}

template <class Args>
Status CheckBackward(const Stream& stream, const char* op, const Args& args,
                     const TensorView& found) {
  const int64_t numbers = NormPartNumbers(static_cast<bool>(args.mean));
  WEFT_RETURN_IF_ERROR(Check(stream, op, args.x, found, numbers));
  const Shape columns = {args.x.shape[-1]}, rows = {args.x.shape.Rows()};
  ArgumentCheck check(stream, op);
  check.That(found.shape[0] == numbers, "numbers of one part")
      .ContiguousTensor("dy", args.dy, args.x.shape, {args.x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32});
  if (args.mean) check.ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  return check.status();
}

}  // namespace

Status CheckMeasureNormPart(const Stream& stream, const MeasureNormPartArgs& args) {
  const TensorView& x = args.residual;
  WEFT_RETURN_IF_ERROR(
      Check(stream, "MeasureNormPart", x, args.found, NormPartNumbers(args.layer)));
  if (args.delta) {
    ArgumentCheck check(stream, "MeasureNormPart");
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("sum", args.sum, x.shape, {x.dtype});
    WEFT_RETURN_IF_ERROR(check.status());
  }
  return OkStatus();
}

Status CheckNormOfParts(const Stream& stream, const NormOfPartsArgs& args) {
  const TensorView& x = args.x;
  const bool layer = static_cast<bool>(args.bias);
  WEFT_RETURN_IF_ERROR(Check(stream, "NormOfParts", x, args.found, NormPartNumbers(layer)));
  const Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  ArgumentCheck check(stream, "NormOfParts");
  check.ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32});
  if (layer) {
    check.ContiguousTensor("bias", args.bias, columns, {DType::kF32})
        .ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  }
  return check.status();
}

Status CheckMeasureNormGradientPart(const Stream& stream, const MeasureNormGradientPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBackward(stream, "MeasureNormGradientPart", args, args.found));
  const Shape columns = {args.x.shape[-1]};
  ArgumentCheck check(stream, "MeasureNormGradientPart");
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, columns, {DType::kF32});
  return check.status();
}

Status CheckNormGradientOfParts(const Stream& stream, const NormGradientOfPartsArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckBackward(stream, "NormGradientOfParts", args, args.sums));
  ArgumentCheck check(stream, "NormGradientOfParts");
  check.That(args.width >= x.shape[-1], "width is that of all parts")
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  return check.status();
}

}  // namespace weft::kernels
