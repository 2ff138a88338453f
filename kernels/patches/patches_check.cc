#include "kernels/patches/patches_check.h"

#include <cmath>

#include "kernels/argument_check.h"

namespace weft::kernels {

int64_t SideOf(int64_t pixels) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  return side * side == pixels ? side : 0;
}

Status CheckUnfoldPatches(const Stream& stream, const UnfoldPatchesArgs& args) {
  ArgumentCheck check(stream, "UnfoldPatches");
  check.That(args.pixels.shape.rank == 2, "pixels is not a matrix")
      .That(args.channels > 0 && args.patch_size > 0, "channels and patch_size must be positive");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t images = args.pixels.shape[0], numbers = args.pixels.shape[1];
  const int64_t side = numbers % args.channels == 0 ? SideOf(numbers / args.channels) : 0;
  check.That(side > 0, "pixels does not hold square images")
      .That(side % args.patch_size == 0, "patch_size does not divide the side of the images");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t across = side / args.patch_size;
  const Shape patches = {images * across * across,
                         args.channels * args.patch_size * args.patch_size};
  return check.ContiguousTensor("pixels", args.pixels, args.pixels.shape, {DType::kF32})
      .ContiguousTensor("patches", args.patches, patches, kFloatTypes)
      .status();
}

}  // namespace weft::kernels
