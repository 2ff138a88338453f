#include "kernels/affine/affine_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// `view`, when given, has one number for each column or one for all.
void CheckColumns(ArgumentCheck& check, const char* name, const TensorView& view, int64_t width) {
  if (!view) return;
  const bool one = view.shape == Shape{1};
  check.ContiguousTensor(name, view, {one ? 1 : width}, {DType::kF32});
}

}  // namespace

Status CheckAffineForward(const Stream& stream, const AffineForwardArgs& args) {
  const TensorView& x = args.x;
  ArgumentCheck check(stream, "AffineForward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  const int64_t width = x.shape[-1];
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, x.shape, {x.dtype});
  CheckColumns(check, "scale", args.scale, width);
  CheckColumns(check, "shift", args.shift, width);
  return check.status();
}

Status CheckAffineBackward(const Stream& stream, const AffineBackwardArgs& args) {
  const TensorView& dy = args.dy;
  ArgumentCheck check(stream, "AffineBackward");
  check.That(dy.shape.rank >= 1 && dy.shape[-1] > 0, "dy has no columns");
  if (!check.status().ok()) return check.status();
  const int64_t width = dy.shape[-1];
  check.ContiguousTensor("dy", dy, dy.shape, kFloatTypes);
  if (args.dscale) check.ContiguousTensor("x", args.x, dy.shape, {dy.dtype});
  if (args.dx) check.ContiguousTensor("dx", args.dx, dy.shape, {dy.dtype});
  CheckColumns(check, "scale", args.scale, width);
  CheckColumns(check, "dscale", args.dscale, width);
  CheckColumns(check, "dshift", args.dshift, width);
  return check.status();
}

}  // namespace weft::kernels
