#include <cstdint>

#include "kernels/cuda/block_max.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"
#include "kernels/dtype.h"
#include "kernels/quantize_fp8/quantize_fp8.h"
#include "kernels/quantize_fp8/quantize_fp8_check.h"

namespace weft::kernels::cuda {
namespace {

// A block takes a tile of x; a thread takes 16 elements of a row of it at a time.
constexpr int kTileRows = 64, kTileColumns = 128, kRun = 16;
constexpr int kRunsInRow = kTileColumns / kRun;
constexpr int kRowsAtOnce = kBlockThreads / kRunsInRow;
// Words of a row in shared memory.
constexpr int kTileWords = kTileColumns / 4;

template <class X>
struct Problem {
  const X* x;
  int64_t x_stride;
  int64_t rows;
  int64_t columns;
  const float* scale;
  uint8_t* q;           // or null
  uint8_t* transposed;  // or null
  int64_t width;        // of transposed
  uint32_t* amax;       // or null
};

template <class Q>
__device__ uint32_t PackFour(float a, float b, float c, float d) {
  return ptx::PackFloat8<Q>(a, b) | ptx::PackFloat8<Q>(c, d) << 16;
}

__device__ uint32_t MagnitudeBits(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

// Elements from (row, column) on, zeros past the last one.
template <bool kWideRows, class X>
__device__ void LoadRun(const Problem<X>& p, int64_t row, int64_t column, float (&to)[kRun]) {
#pragma unroll
  for (int k = 0; k < kRun; ++k) to[k] = 0;
  if (row >= p.rows || column >= p.columns) return;
  const X* from = p.x + row * p.x_stride + column;
  if constexpr (kWideRows) {
    LoadFloats(from, to);
  } else {
    for (int k = 0; k < kRun && column + k < p.columns; ++k) to[k] = Widen(from[k]);
  }
}

// kWideRows: rows of x and q begin at multiples of 16 bytes and are whole runs; kWideColumns: so do
// and are those of transposed.
template <class X, class Q, bool kWideRows, bool kWideColumns>
__global__ void __launch_bounds__(kBlockThreads) QuantizeKernel(Problem<X> p) {
  // The word more a row keeps the rows that a warp writes in different banks.
  WEFT_SHARED(tile, uint32_t[kTileRows][kTileWords + 1]);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t first_column = int64_t{blockIdx.x} * kTileColumns;
  const bool codes_wanted = p.q != nullptr || p.transposed != nullptr;
  const float scale = codes_wanted ? *p.scale : 0.0f;
  const int run = thread % kRunsInRow;
  const int64_t column = first_column + run * kRun;
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
    const int tile_row = thread / kRunsInRow + i * kRowsAtOnce;
    const int64_t row = first_row + tile_row;
    float values[kRun];
    LoadRun<kWideRows>(p, row, column, values);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const uint32_t bits = MagnitudeBits(values[k]);
      amax = bits > amax ? bits : amax;
    }
    if (!codes_wanted) continue;
    uint32_t words[kRun / 4];
#pragma unroll
    for (int w = 0; w < kRun / 4; ++w) {
      words[w] = PackFour<Q>(values[4 * w] * scale, values[4 * w + 1] * scale,
                             values[4 * w + 2] * scale, values[4 * w + 3] * scale);
    }
    if (p.q != nullptr && row < p.rows && column < p.columns) {
      uint8_t* to = p.q + row * p.columns + column;
      if constexpr (kWideRows) {
        ptx::Store16(to, uint4{words[0], words[1], words[2], words[3]});
      } else {
        for (int k = 0; k < kRun && column + k < p.columns; ++k) {
          to[k] = static_cast<uint8_t>(words[k / 4] >> 8 * (k % 4));
        }
      }
    }
    if (p.transposed != nullptr) {
#pragma unroll
      for (int w = 0; w < kRun / 4; ++w) tile[tile_row][run * (kRun / 4) + w] = words[w];
    }
  }
  if (p.amax != nullptr) {
    amax = BlockMax(amax);
    // A maximum does not depend on the order.
    if (thread == 0 && amax > 0) atomicMax(p.amax, amax);
  }
  if (p.transposed == nullptr) return;
  __syncthreads();
  // A thread writes half a column; the threads of a warp read the same row.
  const int tile_column = thread % kTileColumns;
  const int64_t to_row = first_column + tile_column;
  if (to_row >= p.columns) return;
  constexpr int kPart = kTileRows * kTileColumns / kBlockThreads;
  const int begin = thread / kTileColumns * kPart;
  uint8_t* to = p.transposed + to_row * p.width + first_row;
#pragma unroll
  for (int r = begin; r < begin + kPart; r += kRun) {
    if (first_row + r >= p.width) return;
    uint32_t words[kRun / 4];
#pragma unroll
    for (int w = 0; w < kRun / 4; ++w) {
      words[w] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t word = tile[r + 4 * w + k][tile_column / 4];
        words[w] |= (word >> 8 * (tile_column % 4) & 0xffu) << 8 * k;
      }
    }
    if constexpr (kWideColumns) {
      ptx::Store16(to + r, uint4{words[0], words[1], words[2], words[3]});
    } else {
      for (int k = 0; k < kRun && first_row + r + k < p.width; ++k) {
        to[r + k] = static_cast<uint8_t>(words[k / 4] >> 8 * (k % 4));
      }
    }
  }
}

// A block a tensor.
__global__ void __launch_bounds__(kBlockThreads)
    ScalesKernel(float* amax, float* history, int64_t steps, int64_t slot, float to_margin,
                 const float* largest_code, float* scale, float* inverse_scale) {
  const int64_t i = blockIdx.x;
  history += i * steps;
  uint32_t largest = 0;
  for (int64_t k = threadIdx.x; k < steps; k += kBlockThreads) {
    uint32_t bits = __float_as_uint(history[k]);
    if (k == slot) {
      bits = __float_as_uint(amax[i]);
      if (bits >= 0x7f800000u) bits = 0;
      history[k] = __uint_as_float(bits);
    }
    largest = bits > largest ? bits : largest;
  }
  largest = BlockMax(largest);
  if (threadIdx.x != 0) return;
  amax[i] = 0;
  float next = scale[i];
  if (largest > 0) {
    next = largest_code[i] / __uint_as_float(largest) * to_margin;
    next = fminf(fmaxf(next, kSmallestFp8Scale), kLargestFp8Scale);
    scale[i] = next;
  }
  inverse_scale[i] = 1.0f / next;
}

}  // namespace

Status QuantizeFp8(const Stream& stream, const QuantizeFp8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckQuantizeFp8(stream, args));
  const int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const int64_t covered = args.transposed ? args.transposed.shape[1] : rows;
  const auto launch = [&]<class X, class Q, bool kWideRows, bool kWideColumns>() {
    const Problem<X> problem = {.x = args.x.As<X>(),
                                .x_stride = args.x.row_stride,
                                .rows = rows,
                                .columns = columns,
                                .scale = static_cast<const float*>(args.scale.data),
                                .q = static_cast<uint8_t*>(args.q.data),
                                .transposed = static_cast<uint8_t*>(args.transposed.data),
                                .width = covered,
                                .amax = static_cast<uint32_t*>(args.amax.data)};
    return Launch(stream, "QuantizeFp8",
                  {.grid = {CeilDiv(columns, kTileColumns), CeilDiv(covered, kTileRows)},
                   .block = {kBlockThreads}},
                  QuantizeKernel<X, Q, kWideRows, kWideColumns>, problem);
  };
  const auto of_width = [&]<class X, class Q>() {
    const bool wide_rows = Aligned16(args.x.As<X>(), static_cast<uint8_t*>(args.q.data)) &&
                           args.x.row_stride % kWide<X> == 0 && columns % kRun == 0;
    const bool wide_columns =
        Aligned16(static_cast<uint8_t*>(args.transposed.data)) && covered % kRun == 0;
    if (wide_rows && wide_columns) return launch.template operator()<X, Q, true, true>();
    if (wide_rows) return launch.template operator()<X, Q, true, false>();
    if (wide_columns) return launch.template operator()<X, Q, false, true>();
    return launch.template operator()<X, Q, false, false>();
  };
  return WithFloat8Type((args.q ? args.q : args.transposed).dtype, [&]<class Q>() {
    return args.x.dtype == DType::kF32 ? of_width.template operator()<float, Q>()
                                       : of_width.template operator()<BFloat16, Q>();
  });
}

Status UpdateFp8Scales(const Stream& stream, const UpdateFp8ScalesArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUpdateFp8Scales(stream, args));
  float to_margin = 1;
  for (int i = 0; i < args.margin; ++i) to_margin /= 2;
  return Launch(stream, "UpdateFp8Scales",
                {.grid = {static_cast<unsigned>(args.amax.shape[0])}, .block = {kBlockThreads}},
                ScalesKernel, args.amax.As<float>(), args.history.As<float>(),
                args.history.shape[1], args.slot, to_margin, args.largest_code.As<float>(),
                args.scale.As<float>(), args.inverse_scale.As<float>());
}

}  // namespace weft::kernels::cuda
