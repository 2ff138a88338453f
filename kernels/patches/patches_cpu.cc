#include "kernels/patches/patches.h"

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/patches/patches_check.h"

namespace weft::kernels::cpu {
namespace {

template <class T>
void Unfold(const UnfoldPatchesArgs& args, int64_t side) {
  const int64_t size = args.patch_size, across = side / size;
  const int64_t width = args.channels * size * size;
  ParallelFor(args.patches.shape[0], 16384 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t image = p / (across * across);
      const int64_t down = p / across % across, right = p % across;
      const float* from = args.pixels.As<float>() + image * args.channels * side * side +
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
  WEFT_RETURN_IF_ERROR(CheckUnfoldPatches(stream, args));
  const int64_t side = SideOf(args.pixels.shape[1] / args.channels);
  WithFloatType(args.patches.dtype, [&]<class T>() { Unfold<T>(args, side); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
