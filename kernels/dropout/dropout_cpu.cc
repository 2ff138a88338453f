#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_check.h"
#include "kernels/dropout/dropout_simd.h"

namespace weft::kernels::cpu {

Status Dropout(const Stream& stream, const DropoutArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckDropout(stream, args));
  const DropoutDraw draw = DrawOf(args);
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
