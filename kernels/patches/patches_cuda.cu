#include "kernels/cuda/row_map.h"
#include "kernels/patches/patches.h"
#include "kernels/patches/patches_check.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
struct UnfoldMap {
  const float* pixels;
  StridedRows<T> patches;
  int channels;
  int side;
  int size;
  int across;  ///< Patches of a line.

  // kCount elements of a patch are neighbours in a line of the image.
  template <int kCount>
  __device__ void Apply(int64_t patch, int64_t column) const {
    const int64_t image = patch / (across * across);
    const int within = static_cast<int>(patch - image * across * across);
    const int down = within / across, right = within - down * across;
    const int line = static_cast<int>(column) / size;  // of the patch, over all channels
    const int channel = line / size;
    const int y = down * size + line - channel * size;
    const int x = right * size + static_cast<int>(column) - line * size;
    float values[kCount];
    LoadFloats(pixels + ((image * channels + channel) * side + y) * side + x, values);
    StoreFloats(patches.At(patch, column), values);
  }
};

}  // namespace

Status UnfoldPatches(const Stream& stream, const UnfoldPatchesArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUnfoldPatches(stream, args));
  const auto side = static_cast<int>(SideOf(args.pixels.shape[1] / args.channels));
  const auto size = static_cast<int>(args.patch_size);
  return WithFloatType(args.patches.dtype, [&]<class T>() {
    const UnfoldMap<T> map = {.pixels = args.pixels.As<float>(),
                              .patches = RowsOf<T>(args.patches),
                              .channels = static_cast<int>(args.channels),
                              .side = side,
                              .size = size,
                              .across = side / size};
    // An access must not reach from one line into the next.
    const bool aligned = size % kWide<T> == 0 && Aligned16(map.pixels, args.patches.data);
    return LaunchRowMap<kWide<T>>(stream, "UnfoldPatches", map, args.patches.shape[0],
                                  args.patches.shape[1], aligned);
  });
}

}  // namespace weft::kernels::cuda
