#include <algorithm>
#include <bit>

#include "kernels/cuda/row_map.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_check.h"

namespace weft::kernels::cuda {
namespace {

// A table of W.
template <class W>
struct Table {
  const W* data;  ///< nullptr where there is none
  const int32_t* indices;
  int64_t rows;
  int64_t width;
  int64_t first = 0;  ///< Index of row 0.
  int64_t whole = 0;  ///< Rows of the table that this is a part of.

  // The elements from `column` on of the row that `token` has here: zero when another part of the
  // table has it, NaN when none has.
  template <int kCount>
  __device__ void Load(int64_t token, int64_t column, float (&to)[kCount]) const {
    const int64_t index = indices[token], row = index - first;
    if (row >= 0 && row < rows) {
      LoadFloats(data + row * width + column, to);
    } else {
      const bool elsewhere = index >= 0 && index < whole;
#pragma unroll
      for (int k = 0; k < kCount; ++k) to[k] = elsewhere ? 0.0f : NAN;
    }
  }
};

template <class W, class T>
struct ForwardMap {
  Table<W> tokens;
  Table<W> positions;
  StridedRows<T> out;

  template <int kCount>
  __device__ void Apply(int64_t token, int64_t column) const {
    float sum[kCount];
    tokens.Load(token, column, sum);
    if (positions.data != nullptr) {
      float more[kCount];
      positions.Load(token, column, more);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] += more[k];
    }
    StoreFloats(out.At(token, column), sum);
  }
};

template <class W>
Table<W> TableOf(const TensorView& table, const TensorView& indices,
                 const EmbeddingPart& part = {}) {
  if (!table) return {nullptr, nullptr, 0, 0};
  return {table.As<W>(),  indices.As<int32_t>(), table.shape[0],
          table.shape[1], part.first_row,        part.vocabulary};
}

template <class W, class T>
Status Forward(const Stream& stream, const EmbeddingForwardArgs& args) {
  constexpr int kCount = std::max(kWide<W>, kWide<T>);
  const ForwardMap<W, T> map = {TableOf<W>(args.token_table, args.tokens, args.part),
                                TableOf<W>(args.position_table, args.positions),
                                RowsOf<T>(args.out)};
  return LaunchRowMap<kCount>(stream, "EmbeddingForward", map, args.out.shape[0], args.out.shape[1],
                              RowsAligned16(args.token_table, args.position_table, args.out));
}

// The backward pass takes this many tokens at a time, in order. Sorted by table row, and by token
// within one, each run of equal rows is summed up by itself, in the order of its tokens.
constexpr int kPart = 4096;
constexpr int kSortThreads = 512;

// Row (as unsigned: negative ones come last) and token within the part.
__device__ uint64_t SortKey(int32_t index, int32_t first, int token) {
  const uint32_t row = static_cast<uint32_t>(index) - static_cast<uint32_t>(first);
  return uint64_t{row} << 32 | static_cast<uint32_t>(token);
}
__device__ uint32_t RowOf(uint64_t key) {
  return static_cast<uint32_t>(key >> 32);
}
__device__ uint32_t TokenOf(uint64_t key) {
  return static_cast<uint32_t>(key);
}

// A bitonic sort (Batcher 1968) of each part in shared memory, padded to `size`, a power of two.
__global__ void __launch_bounds__(kSortThreads)
    SortKernel(const int32_t* indices, int64_t count, int size, int32_t first, uint64_t* sorted) {
  WEFT_SHARED(keys, uint64_t[kPart]);
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < size; i += kSortThreads) {
    keys[i] = begin + i < count ? SortKey(indices[begin + i], first, i) : ~uint64_t{0};
  }
  for (int length = 2; length <= size; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = thread; pair < size / 2; pair += kSortThreads) {
        const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const uint64_t a = keys[low], b = keys[high];
        const bool ascending = (low & length) == 0;
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < size && begin + i < count; i += kSortThreads) {
    sorted[begin + i] = keys[i];
  }
}

// A row is a place in the sorted part; the first place of a run adds all of it.
template <class T>
struct AccumulateMap {
  const uint64_t* sorted;
  int64_t count;  ///< Of the part.
  const T* dout;  ///< Rows of the part.
  float* table;
  int64_t table_rows;
  int64_t width;

  template <int kCount>
  __device__ void Apply(int64_t place, int64_t column) const {
    const uint32_t row = RowOf(sorted[place]);
    if (row >= table_rows || (place > 0 && RowOf(sorted[place - 1]) == row)) return;
    float sum[kCount];
    float* to = table + row * width + column;
    LoadFloats(to, sum);
    constexpr int kAhead = 8;
    int64_t at = place;
    for (; at + kAhead <= count && RowOf(sorted[at + kAhead - 1]) == row; at += kAhead) {
      Packed<T, kCount> loaded[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        loaded[i] = LoadPacked<kCount>(dout + TokenOf(sorted[at + i]) * width + column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sum[k] += loaded[i][k];
      }
    }
    for (; at < count && RowOf(sorted[at]) == row; ++at) {
      const Packed<T, kCount> loaded =
          LoadPacked<kCount>(dout + TokenOf(sorted[at]) * width + column);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] += loaded[k];
    }
    StoreFloats(to, sum);
  }
};

// Row 0 of `dtable` is that of index `first`.
template <class T>
Status Accumulate(const Stream& stream, const TensorView& indices, const TensorView& dout,
                  const TensorView& dtable, int64_t first, uint64_t* sorted) {
  const char* op = "EmbeddingBackward";
  const int64_t count = indices.shape[0], width = dout.shape[1];
  const auto size =
      static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(count, 1, kPart))));
  WEFT_RETURN_IF_ERROR(
      Launch(stream, op, {.grid = {CeilDiv(count, kPart)}, .block = {kSortThreads}}, SortKernel,
             indices.As<int32_t>(), count, size, static_cast<int32_t>(first), sorted));
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const AccumulateMap<T> map = {.sorted = sorted + begin,
                                  .count = std::min<int64_t>(kPart, count - begin),
                                  .dout = dout.As<T>() + begin * width,
                                  .table = dtable.As<float>(),
                                  .table_rows = dtable.shape[0],
                                  .width = width};
    WEFT_RETURN_IF_ERROR(
        LaunchRowMap<kWide<T>>(stream, op, map, map.count, width, RowsAligned16(dout, dtable)));
  }
  return OkStatus();
}

}  // namespace

Status EmbeddingForward(const Stream& stream, const EmbeddingForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckEmbeddingForward(stream, args));
  return WithFloatType(args.out.dtype, [&]<class T>() {
    return args.token_table.dtype == DType::kF32 ? Forward<float, T>(stream, args)
                                                 : Forward<BFloat16, T>(stream, args);
  });
}

Status EmbeddingBackward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckEmbeddingBackward(stream, args));
  WEFT_ASSIGN_OR_RETURN(uint64_t * sorted,
                        ScratchOf<uint64_t>(stream, "EmbeddingBackward", args.tokens.shape[0]));
  return WithFloatType(args.dout.dtype, [&]<class T>() -> Status {
    if (args.dtoken_table) {
      WEFT_RETURN_IF_ERROR(Accumulate<T>(stream, args.tokens, args.dout, args.dtoken_table,
                                         args.part.first_row, sorted));
    }
    if (args.dposition_table) {
      WEFT_RETURN_IF_ERROR(
          Accumulate<T>(stream, args.positions, args.dout, args.dposition_table, 0, sorted));
    }
    return OkStatus();
  });
}

}  // namespace weft::kernels::cuda
