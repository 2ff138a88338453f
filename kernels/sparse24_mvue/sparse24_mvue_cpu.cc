#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/sparse24_mvue/sparse24_mvue_check.h"
#include "kernels/sparse24_mvue/sparse24_mvue_simd.h"

namespace weft::kernels::cpu {

Status Mvue(const Stream& stream, const MvueArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMvue(stream, args));
  const int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const int64_t groups = rows / 4;
  const int64_t first_group = args.first_row / 4;
  const int64_t all_columns = args.all_columns > 0 ? args.all_columns : columns;
  PhiloxKey key = args.key;
  if (args.step != nullptr) key.step = *args.step;
  WithFloatType(args.x.dtype, [&]<class T>() {
    const auto row_of = [](const TensorView& view, int64_t row) {
      return view.As<T>() + row * view.row_stride;
    };
    const MvueLoops<T>& loops = PickMvueKernels().Of<T>();
    ParallelFor(groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        loops.run({args.draw, key, first_group + g, args.first_column, all_columns},
                  row_of(args.x, 4 * g), args.x.row_stride, row_of(args.y, 4 * g),
                  args.y.row_stride, columns);
      }
    });
    for (int64_t row = 4 * groups; row < rows; ++row) {
      std::copy_n(row_of(args.x, row), columns, row_of(args.y, row));
    }
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
