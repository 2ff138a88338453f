#include "kernels/moe_combine/moe_combine_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckMoeCombine(const Stream& stream, const MoeCombineArgs& args) {
  ArgumentCheck check(stream, "MoeCombine");
  check.That(args.x.shape.rank == 2 && args.places.shape.rank == 2,
             "x and places must be matrices");
  WEFT_RETURN_IF_ERROR(check.status());
  check.Tensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("places", args.places, args.places.shape, {DType::kI32})
      .Tensor("y", args.y, {args.places.shape[0], args.x.shape[1]}, {args.x.dtype});
  if (args.weights) {
    check.ContiguousTensor("weights", args.weights, args.places.shape, {DType::kF32});
  }
  return check.status();
}

Status CheckMoeCombineBackward(const Stream& stream, const MoeCombineBackwardArgs& args) {
  ArgumentCheck check(stream, "MoeCombineBackward");
  check.That(args.x.shape.rank == 2 && args.places.shape.rank == 2,
             "x and places must be matrices");
  WEFT_RETURN_IF_ERROR(check.status());
  const Shape& places = args.places.shape;
  check.Tensor("x", args.x, args.x.shape, kFloatTypes)
      .Tensor("dx", args.dx, args.x.shape, {args.x.dtype})
      .Tensor("dy", args.dy, {places[0], args.x.shape[1]}, {args.x.dtype})
      .ContiguousTensor("places", args.places, places, {DType::kI32})
      .ContiguousTensor("weights", args.weights, places, {DType::kF32})
      .ContiguousTensor("dweights", args.dweights, places, {DType::kF32});
  return check.status();
}

}  // namespace weft::kernels
