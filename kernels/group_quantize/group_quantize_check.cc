#include "kernels/group_quantize/group_quantize_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

Status Check(ArgumentCheck check, std::string_view name, const TensorView& values,
             const TensorView& codes, const TensorView& scales, int64_t bits) {
  const int64_t groups = QuantizeGroups(values.shape.Elements());
  return check.That(bits == 8 || bits == 4 || bits == 2, "bits are not 8, 4 or 2")
      .ContiguousTensor(name, values, values.shape, kFloatTypes)
      .ContiguousTensor("codes", codes, {groups, 16 * bits}, {DType::kU8})
      .ContiguousTensor("scales", scales, {groups, 2}, {DType::kF32})
      .status();
}

}  // namespace

Status CheckGroupQuantize(const Stream& stream, const GroupQuantizeArgs& args) {
  ArgumentCheck check(stream, "GroupQuantize");
  check.That(args.first_element % 4 == 0, "first_element is not a multiple of 4")
      .That(args.run % kQuantizeGroup == 0, "runs are not of whole groups")
      .That(args.run_stride % 4 == 0, "run_stride is not a multiple of 4");
  return Check(check, "x", args.x, args.codes, args.scales, args.bits);
}

Status CheckGroupDequantize(const Stream& stream, const GroupDequantizeArgs& args) {
  return Check(ArgumentCheck(stream, "GroupDequantize"), "y", args.y, args.codes, args.scales,
               args.bits);
}

}  // namespace weft::kernels
