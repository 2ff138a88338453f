#include "kernels/sparse24_decay/sparse24_decay_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

void CheckPart(ArgumentCheck& check, const TensorView& weight, const TensorView& mask,
               int64_t first) {
  check.ContiguousTensor("mask", mask, mask.shape, {DType::kU16})
      .That(mask.shape.rank == 2, "the mask is no matrix")
      .That(weight.shape.rank == 1 && first >= 0 &&
                first + weight.shape[0] <= 16 * mask.shape.Elements(),
            "the elements are none of the mask");
}

}  // namespace

Status CheckMaskedDecay(const Stream& stream, const MaskedDecayArgs& args) {
  ArgumentCheck check(stream, "MaskedDecay");
  check.ContiguousTensor("weight", args.weight, args.weight.shape, kMatrixTypes)
      .ContiguousTensor("gradient", args.gradient, args.weight.shape, {DType::kF32});
  CheckPart(check, args.weight, args.mask, args.first);
  return check.status();
}

Status CheckMaskedDecay(const Stream& stream, const MaskedWeightDecayArgs& args) {
  ArgumentCheck check(stream, "MaskedWeightDecay");
  check.ContiguousTensor("weight", args.weight, args.weight.shape, {DType::kF32});
  CheckPart(check, args.weight, args.mask, args.first);
  return check.status();
}

}  // namespace weft::kernels
