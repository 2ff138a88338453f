#include "kernels/patches/patches.h"

#include <cmath>

#include "kernels/argument_check.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// The side of a square picture of that many pixels, or 0.
int64_t SideOf(int64_t pixels) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  return side * side == pixels ? side : 0;
}

template <class T>
void Unfold(const UnfoldPatchesArgs& args, int64_t side) {
  const int64_t size = args.patch_size, across = side / size;
  const int64_t width = args.channels * size * size;
  ParallelFor(args.patches.shape[0], 16384 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t picture = p / (across * across);
      const int64_t down = p / across % across, right = p % across;
      const float* from = args.pixels.As<float>() + picture * args.channels * side * side +
                          (down * side + right) * size;
      T* to = args.patches.As<T>() + p * width;
      for (int64_t channel = 0; channel < args.channels; ++channel) {
        for (int64_t row = 0; row < size; ++row) {
          const float* line = from + (channel * side + row) * side;
          for (int64_t column = 0; column < size; ++column) *to++ = FromFloat<T>(line[column]);
        }
      }
    }
  });
}

}  // namespace

Status UnfoldPatches(const Stream& stream, const UnfoldPatchesArgs& args) {
  ArgumentCheck check(stream, "UnfoldPatches");
  check.That(args.pixels.shape.rank == 2, "pixels is not a matrix")
      .That(args.channels > 0 && args.patch_size > 0, "channels and patch_size must be positive");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t pictures = args.pixels.shape[0], numbers = args.pixels.shape[1];
  const int64_t side = numbers % args.channels == 0 ? SideOf(numbers / args.channels) : 0;
  check.That(side > 0, "pixels does not hold square pictures")
      .That(side % args.patch_size == 0, "patch_size does not divide the side of the pictures");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t across = side / args.patch_size;
  const Shape patches = {pictures * across * across,
                         args.channels * args.patch_size * args.patch_size};
  check.ContiguousTensor("pixels", args.pixels, args.pixels.shape, {DType::kF32})
      .ContiguousTensor("patches", args.patches, patches, kFloatTypes);
  WEFT_RETURN_IF_ERROR(check.status());
  WithFloatType(args.patches.dtype, [&]<class T>() { Unfold<T>(args, side); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
