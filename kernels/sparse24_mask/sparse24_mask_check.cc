#include "kernels/sparse24_mask/sparse24_mask_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckMask(const Stream& stream, std::string_view op, const TensorView& weight,
                 const TensorView& mask, const TensorView& flips) {
  ArgumentCheck check(stream, op);
  check.Tensor("weight", weight, weight.shape, kMatrixTypes)
      .That(weight.shape.rank == 2 && weight.shape[0] % 4 == 0 && weight.shape[1] % 4 == 0,
            "the weight is no matrix whose sizes are multiples of 4");
  if (!check.status().ok()) return check.status();
  const Shape blocks = {weight.shape[0] / 4, weight.shape[1] / 4};
  check.ContiguousTensor("mask", mask, blocks, {DType::kU16});
  if (flips) check.ContiguousTensor("flips", flips, {blocks[0]}, {DType::kI32});
  return check.status();
}

Status CheckSoftThreshold(const Stream& stream, const SoftThresholdArgs& args) {
  return ArgumentCheck(stream, "SoftThreshold")
      .Tensor("weight", args.weight, args.weight.shape, kMatrixTypes)
      .That(args.weight.shape.rank == 2 && args.weight.shape[0] % 4 == 0 &&
                args.weight.shape[1] % 4 == 0,
            "the weight is no matrix whose sizes are multiples of 4")
      .Tensor("y", args.y, args.weight.shape, {DType::kF32})
      .status();
}

}  // namespace weft::kernels
