#include "kernels/elementwise/elementwise_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckCast(const Stream& stream, const CastArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  return ArgumentCheck(stream, "Cast")
      .ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("y", y, x.shape, kFloatTypes)
      .That(x.dtype == y.dtype || x.dtype == DType::kF32 || y.dtype == DType::kF32,
            "neither x nor y is f32")
      .status();
}

Status CheckAdd(const Stream& stream, const AddArgs& args) {
  const TensorView& a = args.a;
  return ArgumentCheck(stream, "Add")
      .ContiguousTensor("a", a, a.shape, kFloatTypes)
      .ContiguousTensor("b", args.b, a.shape, {a.dtype})
      .ContiguousTensor("y", args.y, a.shape, {a.dtype})
      .status();
}

Status CheckFill(const Stream& stream, const FillArgs& args) {
  return ArgumentCheck(stream, "Fill")
      .ContiguousTensor("x", args.x, args.x.shape,
                        {DType::kF32, DType::kBF16, DType::kF16, DType::kI32})
      .status();
}

Status CheckScale(const Stream& stream, const ScaleArgs& args) {
  return ArgumentCheck(stream, "Scale")
      .ContiguousTensor("x", args.x, args.x.shape, kFloatTypes)
      .status();
}

Status CheckAddScaled(const Stream& stream, const AddScaledArgs& args) {
  return ArgumentCheck(stream, "AddScaled")
      .ContiguousTensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, args.x.shape, {DType::kF32})
      .status();
}

Status CheckAddSign(const Stream& stream, const AddSignArgs& args) {
  return ArgumentCheck(stream, "AddSign")
      .ContiguousTensor("x", args.x, args.x.shape, {DType::kF32})
      .ContiguousTensor("y", args.y, args.x.shape, {DType::kF32})
      .status();
}

Status CheckApplyMask(const Stream& stream, const ApplyMaskArgs& args) {
  return ArgumentCheck(stream, "ApplyMask")
      .ContiguousTensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("mask", args.mask, args.x.shape, {DType::kU8})
      .status();
}

}  // namespace weft::kernels
