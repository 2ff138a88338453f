#include "kernels/patches/patches.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase Case(int64_t images, int64_t channels, int64_t side, int64_t size, DType dtype,
            CaseUse use = CaseUse::kTest) {
  const int64_t across = side / size;
  return {"unfold_patches/" + std::to_string(images) + "x" + std::to_string(channels) + "x" +
              std::to_string(side) + "p" + std::to_string(size) + "/" +
              std::string(DTypeName(dtype)),
          use, [=](OpRun& run) {
            TestTensor& pixels = run.Input(DType::kF32, {images, channels * side * side});
            const Shape shape = {images * across * across, channels * size * size};
            // By pixel, where the operation goes by patch.
            const auto reference = [=, &pixels] {
              std::vector<double> patches(static_cast<size_t>(shape.Elements()));
              const std::vector<double> values = pixels.InitialValues();
              for (size_t i = 0; i < values.size(); ++i) {
                const auto at = static_cast<int64_t>(i);
                const int64_t x = at % side, y = at / side % side;
                const int64_t channel = at / (side * side) % channels;
                const int64_t image = at / (side * side * channels);
                const int64_t patch = (image * across + y / size) * across + x / size;
                const int64_t within = (channel * size + y % size) * size + x % size;
                patches[static_cast<size_t>(patch * shape[1] + within)] = values[i];
              }
              return patches;
            };
            TestTensor& patches = run.Output("patches", dtype, shape, 0, 1, reference);
            run.run = [=, &pixels, &patches](const Stream& stream) {
              return UnfoldPatches(stream, {.pixels = pixels.view(),
                                            .channels = channels,
                                            .patch_size = size,
                                            .patches = patches.view()});
            };
            run.bytes = static_cast<double>(pixels.view().Bytes() + patches.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> PatchesCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    cases.push_back(Case(0, 1, 4, 2, dtype));
    cases.push_back(Case(1, 1, 3, 3, dtype));
    cases.push_back(Case(2, 3, 6, 2, dtype));
    cases.push_back(Case(16, 3, 48, 16, dtype));
    if (dtype == DType::kBF16) {
      cases.push_back(Case(1024, 3, 224, 16, dtype, CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
