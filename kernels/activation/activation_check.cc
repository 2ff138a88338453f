#include "kernels/activation/activation_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

template <class Args>
Status CheckForward(const Stream& stream, const char* op, const Args& args) {
  const TensorView& x = args.x;
  return ArgumentCheck(stream, op)
      .ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .status();
}

template <class Args>
Status CheckBackward(const Stream& stream, const char* op, const Args& args) {
  const TensorView &dy = args.dy, &x = args.x, &y = args.y;
  ArgumentCheck check(stream, op);
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", dy, x.shape, {x.dtype})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (y) {
    check.ContiguousTensor("y", y, x.shape, {x.dtype})
        .That(y.data != x.data && y.data != dy.data, "y is x or dy, which are still read");
  }
  return check.status();
}

}  // namespace

Status CheckGeluForward(const Stream& stream, const GeluForwardArgs& args) {
  return CheckForward(stream, "GeluForward", args);
}

Status CheckGeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  return CheckBackward(stream, "GeluBackward", args);
}

Status CheckUnitForward(const Stream& stream, const UnitForwardArgs& args) {
  return CheckForward(stream, "UnitForward", args);
}

Status CheckUnitBackward(const Stream& stream, const UnitBackwardArgs& args) {
  return CheckBackward(stream, "UnitBackward", args);
}

Status CheckTanhForward(const Stream& stream, const TanhForwardArgs& args) {
  return CheckForward(stream, "TanhForward", args);
}

Status CheckTanhBackward(const Stream& stream, const TanhBackwardArgs& args) {
  const TensorView& y = args.y;
  return ArgumentCheck(stream, "TanhBackward")
      .ContiguousTensor("y", y, y.shape, kFloatTypes)
      .ContiguousTensor("dy", args.dy, y.shape, {y.dtype})
      .ContiguousTensor("dx", args.dx, y.shape, {y.dtype})
      .status();
}

namespace {

constexpr std::string_view kGroups = "two_of_four needs a multiple of 4 elements";

}  // namespace

Status CheckSquaredReluForward(const Stream& stream, const SquaredReluForwardArgs& args) {
  const TensorView& x = args.x;
  return ArgumentCheck(stream, "SquaredReluForward")
      .ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .That(!args.two_of_four || x.shape.Elements() % 4 == 0, kGroups)
      .status();
}

Status CheckSquaredReluBackward(const Stream& stream, const SquaredReluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &y = args.y;
  ArgumentCheck check(stream, "SquaredReluBackward");
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", dy, x.shape, {x.dtype})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype})
      .That(!args.two_of_four || x.shape.Elements() % 4 == 0, kGroups);
  if (y) {
    check.ContiguousTensor("y", y, x.shape, {x.dtype})
        .That(y.data != x.data && y.data != dy.data, "y is x or dy, which are still read");
  }
  return check.status();
}

}  // namespace weft::kernels
