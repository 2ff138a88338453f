#include "kernels/cuda/row_map.h"
#include "kernels/gather_rows/gather_rows.h"
#include "kernels/gather_rows/gather_rows_check.h"

namespace weft::kernels::cuda {
namespace {

// Elements of any type, by their bits.
template <int kCount, class Bits>
__device__ __forceinline__ void Copy(const Bits* from, Bits* to) {
  if constexpr (kCount == 1) {
    *to = *from;
  } else {
    static_assert(kCount == kWide<Bits>);
    ptx::Store16(to, ptx::Load16(from));
  }
}

// Where row `i` of the picked ones is in the whole matrix; -1: its index is out of range.
struct IndexedRows {
  const int32_t* rows;
  int64_t count;   ///< Indices.
  int64_t period;  ///< Rows of the whole matrix that they are among.
  bool grouped;    ///< Otherwise there is one group, and nothing to divide.

  __device__ __forceinline__ int64_t operator()(int64_t i) const {
    const int64_t row = rows[grouped ? i % count : i];
    if (row < 0 || row >= period) return -1;
    return grouped ? i / count * period + row : row;
  }
};

IndexedRows RowsOf(const TensorView& all, const TensorView& rows, int64_t period) {
  return {rows.As<int32_t>(), rows.shape[0], period > 0 ? period : all.shape[0], period > 0};
}

template <class Bits>
struct GatherMap {
  StridedRows<const Bits> all;
  StridedRows<Bits> picked;
  IndexedRows rows;

  template <int kCount>
  __device__ void Apply(int64_t i, int64_t column) const {
    const int64_t row = rows(i);
    Bits* to = picked.At(i, column);
    if (row >= 0) {
      Copy<kCount>(all.At(row, column), to);
      return;
    }
    // A NaN in all types.
    if constexpr (kCount == 1) {
      *to = static_cast<Bits>(~Bits{0});
    } else {
      ptx::Store16(to, uint4{~0u, ~0u, ~0u, ~0u});
    }
  }
};

template <class Bits>
struct ScatterMap {
  StridedRows<const Bits> picked;
  StridedRows<Bits> all;
  IndexedRows rows;

  template <int kCount>
  __device__ void Apply(int64_t i, int64_t column) const {
    const int64_t row = rows(i);
    if (row >= 0) Copy<kCount>(picked.At(i, column), all.At(row, column));
  }
};

// The matrix by the bits of its elements.
template <class Bits>
StridedRows<Bits> BitsOf(const TensorView& view) {
  return {static_cast<Bits*>(view.data), view.row_stride};
}

// Calls fn.operator()<Bits>() with an integer of the size of `dtype`.
template <class Fn>
Status WithBits(DType dtype, Fn&& fn) {
  if (DTypeSize(dtype) == 4) return fn.template operator()<uint32_t>();
  return fn.template operator()<uint16_t>();
}

}  // namespace

Status GatherRows(const Stream& stream, const GatherRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGatherRows(stream, args));
  return WithBits(args.x.dtype, [&]<class Bits>() {
    const GatherMap<Bits> map = {BitsOf<const Bits>(args.x), BitsOf<Bits>(args.y),
                                 RowsOf(args.x, args.rows, args.period)};
    return LaunchRowMap<kWide<Bits>>(stream, "GatherRows", map, args.y.shape[0], args.y.shape[1],
                                     RowsAligned16(args.x, args.y));
  });
}

Status ScatterRows(const Stream& stream, const ScatterRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScatterRows(stream, args));
  return WithBits(args.x.dtype, [&]<class Bits>() {
    const ScatterMap<Bits> map = {BitsOf<const Bits>(args.x), BitsOf<Bits>(args.y),
                                  RowsOf(args.y, args.rows, args.period)};
    return LaunchRowMap<kWide<Bits>>(stream, "ScatterRows", map, args.x.shape[0], args.x.shape[1],
                                     RowsAligned16(args.x, args.y));
  });
}

}  // namespace weft::kernels::cuda
