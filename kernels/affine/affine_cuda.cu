#include <algorithm>

#include "kernels/affine/affine.h"
#include "kernels/affine/affine_check.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/shared_memory.h"

namespace weft::kernels::cuda {
namespace {

// One number for each column or one for all, or none.
struct ColumnNumbers {
  const float* data;
  bool one;

  explicit ColumnNumbers(const TensorView& view)
      : data(view ? view.As<float>() : nullptr), one(view.shape.Elements() == 1) {}

  template <int kCount>
  __device__ void Load(int64_t column, float (&to)[kCount]) const {
    if (!one) {
      LoadFloats(data + column, to);
      return;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) to[k] = *data;
  }

  bool Aligned() const {
    return one || Aligned16(data);
  }
};

template <class T>
struct ForwardMap {
  StridedRows<const T> x;
  ColumnNumbers scale;
  ColumnNumbers shift;
  StridedRows<T> y;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    float values[kCount], number[kCount];
    LoadFloats(x.At(row, column), values);
    if (scale.data != nullptr) {
      scale.Load(column, number);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] *= number[k];
    }
    if (shift.data != nullptr) {
      shift.Load(column, number);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] += number[k];
    }
    StoreFloats(y.At(row, column), values);
  }
};

constexpr int kAcross = kWarp;
constexpr int kDown = kBlockThreads / kAcross;

template <class T>
struct BackwardRows {
  const T* dy;
  const T* x;  ///< or nullptr
  ColumnNumbers scale;
  T* dx;           ///< or nullptr
  float* columns;  ///< [parts, 2, width] sums for dscale and dshift, or nullptr
  float* totals;   ///< [blocks, 2] the same over all columns, or nullptr
  int64_t rows;
  int64_t part_rows;
  int64_t width;
};

// A block has kAcross * kCount columns (x) of part_rows rows (y), and each of its threads kCount
// columns.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlockThreads) BackwardKernel(const BackwardRows<T> a) {
  const int64_t first = int64_t{blockIdx.x} * kAcross * kCount;
  const int64_t column = first + int64_t{threadIdx.x} * kCount;
  const int64_t begin = int64_t{blockIdx.y} * a.part_rows;
  const int64_t end = begin + a.part_rows < a.rows ? begin + a.part_rows : a.rows;
  float sums[2][kCount] = {};
  if (column < a.width) {
    float scale[kCount];
    if (a.scale.data != nullptr) {
      a.scale.Load(column, scale);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) scale[k] = 1;
    }
    for (int64_t row = begin + threadIdx.y; row < end; row += kDown) {
      const int64_t at = row * a.width + column;
      const Packed<T, kCount> dy = LoadPacked<kCount>(a.dy + at);
      if (a.x != nullptr) {
        const Packed<T, kCount> x = LoadPacked<kCount>(a.x + at);
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[0][k] += dy[k] * x[k];
      }
      float dx[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sums[1][k] += dy[k];
        dx[k] = dy[k] * scale[k];
      }
      if (a.dx != nullptr) StoreFloats(a.dx + at, dx);
    }
  }
  if (a.columns == nullptr && a.totals == nullptr) return;

  constexpr int kColumns = kAcross * kCount;
  WEFT_SHARED(shared, float[kDown][2][kColumns]);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      shared[threadIdx.y][which][threadIdx.x * kCount + k] = sums[which][k];
    }
  }
  __syncthreads();
  float totals[2] = {0, 0};
  const int thread = static_cast<int>(threadIdx.y * kAcross + threadIdx.x);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    for (int c = thread; c < kColumns; c += kBlockThreads) {
      float sum = 0;
#pragma unroll
      for (int y = 0; y < kDown; ++y) sum += shared[y][which][c];
      totals[which] += sum;
      if (a.columns != nullptr && first + c < a.width) {
        a.columns[(int64_t{blockIdx.y} * 2 + which) * a.width + first + c] = sum;
      }
    }
  }
  if (a.totals == nullptr) return;
  BlockSum(totals);
  if (thread == 0) {
    float* to = a.totals + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * 2;
    to[0] = totals[0];
    to[1] = totals[1];
  }
}

template <class T>
Status Backward(const Stream& stream, const AffineBackwardArgs& args) {
  constexpr const char* kOp = "AffineBackward";
  const int64_t width = args.dy.row_stride;  // It is contiguous.
  BackwardRows<T> a = {.dy = args.dy.As<T>(),
                       .x = args.dscale ? args.x.As<T>() : nullptr,
                       .scale = ColumnNumbers(args.scale),
                       .dx = args.dx ? args.dx.As<T>() : nullptr,
                       .columns = nullptr,
                       .totals = nullptr,
                       .rows = args.dy.shape.Elements() / width,
                       .part_rows = 0,
                       .width = width};
  if (a.rows == 0) return OkStatus();
  const bool wide = a.width % kWide<T> == 0 && Aligned16(a.dy, a.x, a.dx) && a.scale.Aligned();
  const unsigned tiles = CeilDiv(a.width, int64_t{kAcross} * (wide ? kWide<T> : 1));
  // Enough blocks to fill the device, of at least some rows for each thread.
  constexpr int64_t kBlocksPerMultiprocessor = 8, kFewestRows = 4 * kDown;
  const int64_t wanted =
      CeilDiv(kBlocksPerMultiprocessor * stream.cuda->limits().multiprocessors, tiles);
  a.part_rows = std::max<int64_t>(kFewestRows, CeilDiv(a.rows, wanted));
  const unsigned parts = CeilDiv(a.rows, a.part_rows);

  const ColumnNumbers dscale(args.dscale), dshift(args.dshift);
  const bool totals =
      (dscale.data != nullptr && dscale.one) || (dshift.data != nullptr && dshift.one);
  const bool columns =
      (dscale.data != nullptr && !dscale.one) || (dshift.data != nullptr && !dshift.one);
  if (totals || columns) {
    const int64_t of_columns = columns ? int64_t{parts} * 2 * a.width : 0;
    const int64_t of_totals = totals ? int64_t{parts} * 2 * tiles : 0;
    WEFT_ASSIGN_OR_RETURN(float* scratch, ScratchOf<float>(stream, kOp, of_columns + of_totals));
    if (columns) a.columns = scratch;
    if (totals) a.totals = scratch + of_columns;
  }
  WEFT_RETURN_IF_ERROR(Launch(stream, kOp, {.grid = {tiles, parts}, .block = {kAcross, kDown}},
                              wide ? BackwardKernel<T, kWide<T>> : BackwardKernel<T, 1>, a));
  // Either kind of sums goes where one of its kind is wanted.
  const auto wanted_of = [](const TensorView& view, bool one) {
    return view && (view.shape.Elements() == 1) == one ? view.As<float>() : nullptr;
  };
  if (columns) {
    WEFT_RETURN_IF_ERROR(AddPartialSums(stream, kOp, a.columns, static_cast<int>(parts), a.width,
                                        wanted_of(args.dscale, false),
                                        wanted_of(args.dshift, false)));
  }
  if (!totals) return OkStatus();
  return AddPartialSums(stream, kOp, a.totals, static_cast<int>(parts * tiles), 1,
                        wanted_of(args.dscale, true), wanted_of(args.dshift, true));
}

}  // namespace

Status AffineForward(const Stream& stream, const AffineForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAffineForward(stream, args));
  const int64_t rows = args.x.shape.Rows(), width = args.x.shape[-1];
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const ForwardMap<T> map = {RowsOf<const T>(args.x), ColumnNumbers(args.scale),
                               ColumnNumbers(args.shift), RowsOf<T>(args.y)};
    const bool aligned =
        RowsAligned16(args.x, args.y) && map.scale.Aligned() && map.shift.Aligned();
    return LaunchRowMap<kWide<T>>(stream, "AffineForward", map, rows, width, aligned);
  });
}

Status AffineBackward(const Stream& stream, const AffineBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAffineBackward(stream, args));
  return WithFloatType(args.dy.dtype, [&]<class T>() { return Backward<T>(stream, args); });
}

}  // namespace weft::kernels::cuda
