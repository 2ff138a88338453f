#include "kernels/quantize_int8/quantize_int8_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

Status Check(ArgumentCheck check, std::string_view name, const TensorView& values,
             const TensorView& q, const TensorView& scale, int64_t group) {
  check.That(values.shape.rank == 2, std::string(name) + " is not a matrix")
      .That(group >= 1, "group is below 1");
  WEFT_RETURN_IF_ERROR(check.status());
  return check.Tensor(name, values, values.shape, kFloatTypes)
      .ContiguousTensor("q", q, values.shape, {DType::kU8})
      .ContiguousTensor("scale", scale, {values.shape[0], Int8Groups(values.shape[1], group)},
                        {DType::kF32})
      .status();
}

}  // namespace

Status CheckQuantizeInt8(const Stream& stream, const QuantizeInt8Args& args) {
  return Check(ArgumentCheck(stream, "QuantizeInt8"), "x", args.x, args.q, args.scale, args.group);
}

Status CheckDequantizeInt8(const Stream& stream, const DequantizeInt8Args& args) {
  return Check(ArgumentCheck(stream, "DequantizeInt8"), "y", args.y, args.q, args.scale,
               args.group);
}

}  // namespace weft::kernels
