#include "kernels/cuda/row_map.h"
#include "kernels/sparse24_mvue/mvue_device.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/sparse24_mvue/sparse24_mvue_check.h"

namespace weft::kernels::cuda {
namespace {

// A row of the map is a group of four rows; the last one may have fewer, which are copied.
template <class T>
struct MvueMap {
  StridedRows<const T> x;
  StridedRows<T> y;
  int64_t rows;
  MvueNumbers numbers;

  template <int kCount>
  __device__ void Apply(int64_t group, int64_t column) const {
    float values[4][kCount];
    const int64_t first = 4 * group, count = rows - first;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < count) LoadFloats(x.At(first + r, column), values[r]);
    }
    if (count >= 4) {
      MvueWords words{numbers, group, column};
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        float drawn[4] = {values[0][c], values[1][c], values[2][c], values[3][c]};
        DrawGroup(numbers.draw, words.Of(c), drawn);
#pragma unroll
        for (int r = 0; r < 4; ++r) values[r][c] = drawn[r];
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < count) StoreFloats(y.At(first + r, column), values[r]);
    }
  }
};

}  // namespace

Status Mvue(const Stream& stream, const MvueArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMvue(stream, args));
  const int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const MvueMap<T> map = {RowsOf<const T>(args.x), RowsOf<T>(args.y), rows,
                            MvueNumbersOf(args, columns)};
    return LaunchRowMap<4>(stream, "Mvue", map, CeilDiv(rows, 4), columns,
                           RowsAligned16(args.x, args.y));
  });
}

}  // namespace weft::kernels::cuda
