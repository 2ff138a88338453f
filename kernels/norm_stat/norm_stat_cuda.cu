#include <cstdint>

#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_table.h"
#include "kernels/cuda/vector.h"
#include "kernels/norm_stat/norm_stat.h"
#include "kernels/norm_stat/norm_stat_check.h"

namespace weft::kernels::cuda {
namespace {

// Elements that a block sums up. Part of the result's definition: another size sums in another
// order.
constexpr int64_t kChunk = 32768;

struct TensorEntry {
  const float* data;
  const BFloat16* bf16_data;
  int64_t count;
  int first_chunk;
  bool aligned;
};

using Table = TensorTable<TensorEntry>;

struct Partial {
  double sum;
  int64_t non_finite;
};

struct Sums {
  double squares[1] = {0};
  int64_t non_finite[1] = {0};

  __device__ void Add(float value) {
    squares[0] += static_cast<double>(value) * static_cast<double>(value);
    non_finite[0] += (__float_as_uint(value) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  }

  // Elements [begin, end) of a tensor.
  template <class T>
  __device__ void AddRange(const T* data, int64_t begin, int64_t end, bool aligned) {
    const int thread = static_cast<int>(threadIdx.x);
    if (!aligned) {
      for (int64_t i = begin + thread; i < end; i += kBlockThreads) Add(Widen(data[i]));
      return;
    }
    constexpr int kCount = kWide<T>;
    for (int64_t i = begin + thread * kCount; i < end; i += kBlockThreads * kCount) {
      if (i + kCount <= end) {
        const Packed<T, kCount> values = LoadPacked<kCount>(data + i);
#pragma unroll
        for (int k = 0; k < kCount; ++k) Add(values[k]);
      } else {
        for (int64_t k = i; k < end; ++k) Add(Widen(data[k]));
      }
    }
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    ChunkKernel(const __grid_constant__ Table table, Partial* partials) {
  const int chunk = static_cast<int>(blockIdx.x);
  const TensorEntry& t = table.tensors[table.Find(chunk)];
  const int64_t begin = int64_t{chunk - t.first_chunk} * kChunk;
  const int64_t end = begin + kChunk < t.count ? begin + kChunk : t.count;
  Sums sums;
  if (t.bf16_data != nullptr) {
    sums.AddRange(t.bf16_data, begin, end, t.aligned);
  } else {
    sums.AddRange(t.data, begin, end, t.aligned);
  }
  BlockSum(sums.squares);
  BlockSum(sums.non_finite);
  if (threadIdx.x == 0) partials[chunk] = {sums.squares[0], sums.non_finite[0]};
}

// One block adds up the parts.
__global__ void __launch_bounds__(kBlockThreads)
    TotalKernel(const Partial* partials, int64_t count, double* sum_of_squares,
                int64_t* non_finite) {
  Sums sums;
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) {
    sums.squares[0] += partials[i].sum;
    sums.non_finite[0] += partials[i].non_finite;
  }
  BlockSum(sums.squares);
  BlockSum(sums.non_finite);
  if (threadIdx.x == 0) {
    *sum_of_squares = sums.squares[0];
    *non_finite = sums.non_finite[0];
  }
}

}  // namespace

Status NormStat(const Stream& stream, const NormStatArgs& args) {
  constexpr const char* kOp = "NormStat";
  WEFT_RETURN_IF_ERROR(CheckNormStat(stream, args));
  int64_t chunks = 0;
  for (const NormTensor& tensor : args.tensors) chunks += CeilDiv(tensor.count, kChunk);
  WEFT_ASSIGN_OR_RETURN(Partial * partials, ScratchOf<Partial>(stream, kOp, chunks));
  Table table;
  int table_chunks = 0;
  Partial* to = partials;
  const auto launch = [&] {
    Status status = Launch(
        stream, kOp, {.grid = {static_cast<unsigned>(table_chunks)}, .block = {kBlockThreads}},
        ChunkKernel, table, to);
    to += table_chunks;
    table.count = table_chunks = 0;
    return status;
  };
  for (const NormTensor& tensor : args.tensors) {
    if (tensor.count == 0) continue;
    if (table.count == Table::kMostTensors) WEFT_RETURN_IF_ERROR(launch());
    table.tensors[table.count++] = {.data = tensor.data,
                                    .bf16_data = tensor.bf16_data,
                                    .count = tensor.count,
                                    .first_chunk = table_chunks,
                                    .aligned = Aligned16(tensor.data, tensor.bf16_data)};
    table_chunks += static_cast<int>(CeilDiv(tensor.count, kChunk));
  }
  WEFT_RETURN_IF_ERROR(launch());
  return Launch(stream, kOp, {.grid = {1}, .block = {kBlockThreads}}, TotalKernel, partials, chunks,
                args.sum_of_squares, args.non_finite);
}

}  // namespace weft::kernels::cuda
