#include "kernels/rope/rope_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckRope(const Stream& stream, const RopeArgs& args) {
  ArgumentCheck check(stream, "Rope");
  check.That(args.x.shape.rank == 2, "x is not a matrix")
      .That(args.cosines.shape.rank == 2 && args.cosines.shape[1] > 0,
            "cosines is not a matrix with columns");
  if (!check.status().ok()) return check.status();
  return check
      .That(args.x.shape[1] % (2 * args.cosines.shape[1]) == 0,
            "the columns of x are not whole heads of twice the table's columns")
      .Tensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("positions", args.positions, {args.x.shape[0]}, {DType::kI32})
      .ContiguousTensor("cosines", args.cosines, args.cosines.shape, {DType::kF32})
      .ContiguousTensor("sines", args.sines, args.cosines.shape, {DType::kF32})
      .status();
}

}  // namespace weft::kernels
