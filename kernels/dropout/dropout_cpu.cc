#include <algorithm>
#include <cmath>

#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_simd.h"

namespace weft::kernels::cpu {

Status Dropout(const Stream& stream, const DropoutArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(
      ArgumentCheck(stream, "Dropout")
          .ContiguousTensor("x", x, x.shape, kFloatTypes)
          .ContiguousTensor("y", y, x.shape, {x.dtype})
          .That(args.probability >= 0 && args.probability < 1, "probability is not in [0, 1)")
          .That(args.first_element % 4 == 0, "first_element is not a multiple of 4")
          .status());
  // UniformFloat(word) is k / 2^24 for the word's upper 24 bits k, and k / 2^24 < p is k < p 2^24.
  DropoutDraw draw = {.key = args.key,
                      .threshold = static_cast<int32_t>(std::ceil(args.probability * 0x1.0p24)),
                      .scale = 1.0f / (1.0f - args.probability)};
  // Threads split at whole Philox blocks, and at cache lines.
  constexpr int64_t kUnit = 64, kGrainUnits = 256;
  int64_t count = x.shape.Elements();
  WithFloatType(x.dtype, [&]<class T>() {
    const DropoutLoop<T>& loop = PickDropoutKernels().Of<T>();
    ParallelFor((count + kUnit - 1) / kUnit, kGrainUnits, [&](int64_t first, int64_t last) {
      int64_t begin = first * kUnit, size = std::min(last * kUnit, count) - begin;
      uint64_t block = (args.first_element + static_cast<uint64_t>(begin)) / 4;
      loop.run(draw, block, x.As<T>() + begin, y.As<T>() + begin, size);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
