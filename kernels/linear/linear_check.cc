#include "kernels/linear/linear_check.h"

#include <algorithm>
#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

int64_t RowsOf(const TensorView& view) {
  return view.shape.rank == 2 ? view.shape[0] : 0;
}

}  // namespace

Status CheckLinearForward(const Stream& stream, const LinearForwardArgs& args) {
  const DType type = args.weight->compute();
  const int64_t rows = RowsOf(args.x), out = args.weight->out_features();
  ArgumentCheck check(stream, "LinearForward");
  check.Tensor("x", args.x, Shape{rows, args.weight->in_features()}, {type});
  check.Tensor("y", args.y, Shape{rows, out}, {type, DType::kF32});
  if (args.bias) check.ContiguousTensor("bias", args.bias, Shape{out}, {DType::kF32});
  if (args.active) {
    check.ContiguousTensor("y", args.y, Shape{rows, out}, {type})
        .ContiguousTensor("active", args.active, Shape{rows, out}, {type});
  }
  check.That(!args.accumulate || (!args.bias && !args.active),
             "accumulate, with a bias or `active`");
  return check.status();
}

Status CheckLinearBackwardInput(const Stream& stream, const LinearBackwardInputArgs& args) {
  const DType type = args.weight->compute();
  const int64_t rows = RowsOf(args.dy);
  const Shape input{rows, args.weight->in_features()};
  ArgumentCheck check(stream, "LinearBackwardInput");
  check.Tensor("dy", args.dy, Shape{rows, args.weight->out_features()}, {type})
      .Tensor("dx", args.dx, input, {type});
  if (args.before) {
    check.ContiguousTensor("dx", args.dx, input, {type})
        .ContiguousTensor("before", args.before, input, {type})
        .That(!args.accumulate, "accumulate, of a gradient that goes on to `before`");
  }
  if (args.active) {
    check.ContiguousTensor("active", args.active, input, {type})
        .That(static_cast<bool>(args.before), "active without `before`");
  }
  return check.status();
}

Status CheckLinearBackwardWeight(const Stream& stream, const LinearBackwardWeightArgs& args) {
  ArgumentCheck check(stream, "LinearBackwardWeight");
  check.That(args.x.shape.rank == 2 && args.dy.shape.rank == 2, "x and dy must be matrices");
  if (!check.status().ok()) return check.status();
  const int64_t rows = RowsOf(args.x), in = args.x.shape[1], out = args.dy.shape[1];
  check.Tensor("x", args.x, Shape{rows, in}, kFloatTypes);
  check.Tensor("dy", args.dy, Shape{rows, out}, {args.x.dtype});
  if (args.dweight) {
    check.ContiguousTensor("dweight", args.dweight, Shape{out, in}, {DType::kF32});
  }
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, Shape{out}, {DType::kF32});
  return check.status();
}

Status CheckNewPackedWeight(int64_t out_features, int64_t in_features, DType compute) {
  if (out_features < 1 || in_features < 1) {
    return InvalidError("NewPackedWeight: [" + std::to_string(out_features) + ", " +
                        std::to_string(in_features) + "] has no elements");
  }
  if (std::find(kFloatTypes.begin(), kFloatTypes.end(), compute) == kFloatTypes.end()) {
    return InvalidError("NewPackedWeight: compute type " + std::string(DTypeName(compute)) +
                        "; hint: f32, bf16 or f16");
  }
  return OkStatus();
}

Status CheckPack(const Stream& stream, const PackedWeight& weight, const TensorView& master) {
  // Nothing is stored as f16, but what comes to a device from elsewhere may come so.
  const bool as_it_is = stream.device.type == DeviceType::kCuda && master.dtype == weight.compute();
  return ArgumentCheck(stream, "PackedWeight::Pack")
      .ContiguousTensor("master", master, Shape{weight.out_features(), weight.in_features()},
                        as_it_is ? kFloatTypes : kMatrixTypes)
      .status();
}

}  // namespace weft::kernels
