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
  // Threads split at whole Philox blocks, and at cache lines; parts of rows at rows.
  constexpr int64_t kUnit = 64, kGrainUnits = 256;
  const int64_t count = x.shape.Elements(), columns = args.columns;
  WithFloatType(x.dtype, [&]<class T>() {
    const DropoutLoop<T>& loop = PickDropoutKernels().Of<T>();
    const auto run = [&](int64_t begin, int64_t size, int64_t element) {
      const uint64_t block = (args.first_element + static_cast<uint64_t>(element)) / 4;
      loop.run(draw, block, x.As<T>() + begin, y.As<T>() + begin, size);
    };
    if (columns == 0) {
      ParallelFor((count + kUnit - 1) / kUnit, kGrainUnits, [&](int64_t first, int64_t last) {
        const int64_t begin = first * kUnit;
        run(begin, std::min(last * kUnit, count) - begin, begin);
      });
      return;
    }
    const int64_t rows_of_grain = std::max<int64_t>(kUnit * kGrainUnits / columns, 1);
    ParallelFor(count / columns, rows_of_grain, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        run(row * columns, columns, row * args.row_stride);
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
