#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/rng.h"
#include "kernels/adafactor/adafactor.h"
#include "kernels/adafactor/adafactor_check.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/four.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/tensor_table.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

// Six launches for all tensors of a table. Three of them read the gradient, in tiles, a block each:
// SquaresKernel sums its squares by row and column, UpdateSquaresKernel those of the update, and
// ApplyKernel steps. Sums have the order that tiles give them.
constexpr int kTogether = 4;
constexpr int kTileColumns = kWarp * kTogether;
constexpr int kTileRows = 256;
constexpr int kWarps = kBlockThreads / kWarp;

struct TensorEntry {
  float* parameter;
  BFloat16* bf16_parameter;
  const float* gradient;
  float* row_moment;
  float* column_moment;
  int64_t rows;
  int64_t columns;
  float* row_sums;     ///< [tiles across, rows] of squares; not of one row
  float* column_sums;  ///< [tiles down, columns]
  int first_chunk;     ///< A chunk is a tile.
  int across;          ///< Tiles of a line of them.
  float rate;
  float decay;  ///< Factor on the parameter.
  uint32_t rounding_site;
  bool aligned;
};

struct Table : TensorTable<TensorEntry> {
  int chunks = 0;
  float gradient_scale;
  float gradient_limit;
  float fresh;  ///< Weight of the newest squares in the moments.
  float clip;
  float largest_rate;
  PhiloxKey rounding;
  UpdateGate gate;
  float* mean_rows;  ///< Mean row moment of each tensor.
  float* sizes;      ///< Of each tensor's step.
  double* squares;   ///< [tiles, 2] of the update and the parameter.

  // The kernels between write scratch memory only.
  __device__ bool IsMade() const { return gate.made == nullptr || *gate.made != 0; }
  __device__ float GradientScale() const {
    return gate.factor == nullptr ? gradient_scale : gradient_scale * *gate.factor;
  }
};

// A thread's part in a tile: up to kTogether columns, in every kWarps-th row.
struct Tile {
  int index;  ///< Of the tensor.
  const TensorEntry& t;
  int64_t down;     ///< Tile's place among the others.
  int64_t to_side;  ///< Likewise.
  int64_t first_row;
  int64_t end_row;
  int64_t column;
  int count;  ///< Columns that are there.
  bool wide;
  float scale;  ///< Of gradients.

  __device__ explicit Tile(const Table& table)
      : index(table.Find(static_cast<int>(blockIdx.x))), t(table.tensors[index]) {
    const int tile = static_cast<int>(blockIdx.x) - t.first_chunk;
    down = tile / t.across;
    to_side = tile - down * t.across;
    first_row = down * kTileRows + threadIdx.x / kWarp;
    end_row = (down + 1) * kTileRows < t.rows ? (down + 1) * kTileRows : t.rows;
    column = to_side * kTileColumns + int64_t{threadIdx.x % kWarp} * kTogether;
    const int64_t left = t.columns - column;
    count = left < 0 ? 0 : left < kTogether ? static_cast<int>(left) : kTogether;
    wide = t.aligned && count == kTogether;
    scale = table.GradientScale();
  }

  __device__ void LoadGradient(const Table& table, int64_t row, float (&g)[kTogether]) const {
    LoadFour(t.gradient + row * t.columns + column, count, wide, g);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      // Comparisons keep a NaN, which fminf and fmaxf would lose.
      g[k] *= scale;
      if (g[k] > table.gradient_limit) g[k] = table.gradient_limit;
      if (g[k] < -table.gradient_limit) g[k] = -table.gradient_limit;
    }
  }

  __device__ void LoadParameter(int64_t row, float (&p)[kTogether]) const {
    const int64_t at = row * t.columns + column;
    if (t.bf16_parameter != nullptr) {
      LoadFour(t.bf16_parameter + at, count, wide, p);
    } else {
      LoadFour(t.parameter + at, count, wide, p);
    }
  }

  // 1 / sqrt(V) is a product of these.
  __device__ void LoadColumnFactors(float (&factors)[kTogether]) const {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      factors[k] = k < count ? 1.0f / sqrtf(t.column_moment[column + k]) : 0.0f;
    }
  }
  __device__ float RowFactor(const Table& table, int64_t row) const {
    return t.rows == 1 ? 1.0f : sqrtf(table.mean_rows[index] / t.row_moment[row]);
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    SquaresKernel(const __grid_constant__ Table table) {
  const Tile tile(table);
  const TensorEntry& t = tile.t;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  float by_column[kTogether] = {};
  for (int64_t row = tile.first_row; row < tile.end_row; row += kWarps) {
    float g[kTogether], of_row = 0;
    tile.LoadGradient(table, row, g);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      by_column[k] += g[k] * g[k];
      of_row += g[k] * g[k];
    }
    if (t.rows == 1) continue;
    of_row = WarpSum(of_row);
    if (lane == 0) t.row_sums[tile.to_side * t.rows + row] = of_row;
  }
  WEFT_SHARED(sums, float[kWarps][kTileColumns]);
#pragma unroll
  for (int k = 0; k < kTogether; ++k) sums[warp][lane * kTogether + k] = by_column[k];
  __syncthreads();
  const auto within = static_cast<int>(threadIdx.x);
  const int64_t column = tile.to_side * kTileColumns + within;
  if (within >= kTileColumns || column >= t.columns) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[w][within];
  t.column_sums[tile.down * t.columns + column] = sum;
}

// Blocks along x partition the moments of a tensor, which is y.
__global__ void __launch_bounds__(kBlockThreads)
    MomentsKernel(const __grid_constant__ Table table) {
  if (!table.IsMade()) return;
  const TensorEntry& t = table.tensors[blockIdx.y];
  const int64_t down = (t.rows + kTileRows - 1) / kTileRows;
  const int64_t rows = t.rows == 1 ? 0 : t.rows;
  const int64_t step = int64_t{gridDim.x} * kBlockThreads;
  int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  for (; i < t.columns + rows; i += step) {
    const bool is_column = i < t.columns;
    const int64_t at = is_column ? i : i - t.columns;
    const float* from = (is_column ? t.column_sums : t.row_sums) + at;
    const int64_t stride = is_column ? t.columns : t.rows, parts = is_column ? down : t.across;
    double sum = 0;
#pragma unroll 8
    for (int64_t part = 0; part < parts; ++part) sum += from[part * stride];
    const double mean = sum / static_cast<double>(is_column ? t.rows : t.columns) + kSmallestSquare;
    float& moment = (is_column ? t.column_moment : t.row_moment)[at];
    moment += table.fresh * (static_cast<float>(mean) - moment);
  }
}

// A block a tensor, as below.
__global__ void __launch_bounds__(kBlockThreads)
    MeanRowKernel(const __grid_constant__ Table table) {
  const TensorEntry& t = table.tensors[blockIdx.x];
  if (t.rows == 1) return;
  double sum[1] = {0};
  for (int64_t row = threadIdx.x; row < t.rows; row += kBlockThreads) sum[0] += t.row_moment[row];
  BlockSum(sum);
  if (threadIdx.x == 0) {
    table.mean_rows[blockIdx.x] = static_cast<float>(sum[0] / static_cast<double>(t.rows));
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    UpdateSquaresKernel(const __grid_constant__ Table table) {
  const Tile tile(table);
  float factors[kTogether];
  tile.LoadColumnFactors(factors);
  double sums[2] = {0, 0};
  for (int64_t row = tile.first_row; row < tile.end_row; row += kWarps) {
    float g[kTogether], p[kTogether], of_update = 0;
    tile.LoadGradient(table, row, g);
    tile.LoadParameter(row, p);
    const float row_factor = tile.RowFactor(table, row);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const float u = g[k] * factors[k];
      of_update += u * u;
      sums[1] += static_cast<double>(p[k]) * static_cast<double>(p[k]);
    }
    sums[0] += static_cast<double>(row_factor * row_factor) * static_cast<double>(of_update);
  }
  BlockSum(sums);
  if (threadIdx.x == 0) {
    table.squares[2 * int64_t{blockIdx.x}] = sums[0];
    table.squares[2 * int64_t{blockIdx.x} + 1] = sums[1];
  }
}

__global__ void __launch_bounds__(kBlockThreads) SizeKernel(const __grid_constant__ Table table) {
  const auto index = static_cast<int>(blockIdx.x);
  const TensorEntry& t = table.tensors[index];
  const int end = index + 1 < table.count ? table.tensors[index + 1].first_chunk : table.chunks;
  double sums[2] = {0, 0};
  for (int64_t c = int64_t{t.first_chunk} + threadIdx.x; c < end; c += kBlockThreads) {
    sums[0] += table.squares[2 * c];
    sums[1] += table.squares[2 * c + 1];
  }
  BlockSum(sums);
  if (threadIdx.x != 0) return;
  const auto elements = static_cast<double>(t.rows * t.columns);
  double over = sqrt(sums[0] / elements) / table.clip, scale = sqrt(sums[1] / elements);
  if (!(over > 1)) over = 1;
  if (!(scale > kSmallestScale)) scale = kSmallestScale;
  const double rate = t.rate < table.largest_rate ? t.rate : table.largest_rate;
  table.sizes[index] = static_cast<float>(scale * rate / over);
}

__global__ void __launch_bounds__(kBlockThreads) ApplyKernel(const __grid_constant__ Table table) {
  if (!table.IsMade()) return;
  const Tile tile(table);
  const TensorEntry& t = tile.t;
  float factors[kTogether];
  tile.LoadColumnFactors(factors);
  const PhiloxKey key = {table.rounding.seed, table.rounding.step, t.rounding_site};
  for (int64_t row = tile.first_row; row < tile.end_row; row += kWarps) {
    float g[kTogether], p[kTogether];
    tile.LoadGradient(table, row, g);
    tile.LoadParameter(row, p);
    const float size = table.sizes[tile.index] * tile.RowFactor(table, row);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) p[k] = p[k] * t.decay - g[k] * factors[k] * size;
    const int64_t at = row * t.columns + tile.column;
    if (t.bf16_parameter != nullptr) {
      const int64_t whole_columns = (t.columns + kTogether - 1) / kTogether * kTogether;
      RoundFour(t.bf16_parameter + at, tile.count, tile.wide, p, key,
                row * whole_columns + tile.column);
    } else {
      StoreFour(t.parameter + at, tile.count, tile.wide, p);
    }
  }
}

// Runs all passes over the tensors of the table.
Status Run(const Stream& stream, const Table& table) {
  const auto launch = [&](void (*kernel)(Table), dim3 grid) {
    return Launch(stream, "Adafactor", {.grid = grid, .block = {kBlockThreads}}, kernel, table);
  };
  const auto tiles = static_cast<unsigned>(table.chunks);
  const auto tensors = static_cast<unsigned>(table.count);
  constexpr unsigned kBlocksOfMoments = 8;
  WEFT_RETURN_IF_ERROR(launch(SquaresKernel, {tiles}));
  WEFT_RETURN_IF_ERROR(launch(MomentsKernel, {kBlocksOfMoments, tensors}));
  WEFT_RETURN_IF_ERROR(launch(MeanRowKernel, {tensors}));
  WEFT_RETURN_IF_ERROR(launch(UpdateSquaresKernel, {tiles}));
  WEFT_RETURN_IF_ERROR(launch(SizeKernel, {tensors}));
  return launch(ApplyKernel, {tiles});
}

// How a tensor is cut into tiles.
struct Tiling {
  int64_t down;
  int64_t across;

  explicit Tiling(const AdafactorTensor& tensor)
      : down(CeilDiv(tensor.rows, kTileRows)), across(CeilDiv(tensor.columns, kTileColumns)) {}
  int64_t Tiles() const { return down * across; }
  int64_t RowSums(const AdafactorTensor& tensor) const {
    return tensor.rows == 1 ? 0 : across * tensor.rows;
  }
  int64_t ColumnSums(const AdafactorTensor& tensor) const { return down * tensor.columns; }
};

}  // namespace

Status Adafactor(const Stream& stream, const AdafactorArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdafactor(stream, args));
  int64_t tiles = 0, sums = 0;
  for (const AdafactorTensor& tensor : args.tensors) {
    const Tiling tiling(tensor);
    tiles += tiling.Tiles();
    sums += tiling.RowSums(tensor) + tiling.ColumnSums(tensor);
  }
  // The squares come first: they need the alignment of doubles.
  const int64_t of_squares = 4 * tiles, of_tensors = 2 * Table::kMostTensors;
  WEFT_ASSIGN_OR_RETURN(float* scratch,
                        ScratchOf<float>(stream, "Adafactor", of_squares + of_tensors + sums));
  const auto step = static_cast<double>(args.step);
  Table table;
  table.gradient_scale = args.gradient_scale;
  table.gradient_limit = args.gradient_limit;
  table.fresh = static_cast<float>(std::pow(step, -static_cast<double>(args.decay_exponent)));
  table.clip = args.clip;
  table.largest_rate = static_cast<float>(1 / std::sqrt(step));
  table.rounding = {.seed = args.seed, .step = args.rounding_step, .site = 0};
  table.gate = args.gate;
  table.squares = reinterpret_cast<double*>(scratch);
  table.mean_rows = scratch + of_squares;
  table.sizes = table.mean_rows + Table::kMostTensors;
  float* sums_of_next = scratch + of_squares + of_tensors;
  for (const AdafactorTensor& tensor : args.tensors) {
    if (table.count == Table::kMostTensors) {
      WEFT_RETURN_IF_ERROR(Run(stream, table));
      table.count = table.chunks = 0;
    }
    const Tiling tiling(tensor);
    const double rate = static_cast<double>(args.learning_rate) * tensor.learning_rate_scale;
    table.tensors[table.count++] = {
        .parameter = tensor.parameter,
        .bf16_parameter = tensor.bf16_parameter,
        .gradient = tensor.gradient,
        .row_moment = tensor.row_moment,
        .column_moment = tensor.column_moment,
        .rows = tensor.rows,
        .columns = tensor.columns,
        .row_sums = sums_of_next,
        .column_sums = sums_of_next + tiling.RowSums(tensor),
        .first_chunk = table.chunks,
        .across = static_cast<int>(tiling.across),
        .rate = static_cast<float>(rate),
        .decay = static_cast<float>(1 - rate * tensor.weight_decay),
        .rounding_site = tensor.rounding_site,
        .aligned = tensor.columns % kTogether == 0 &&
                   Aligned16(tensor.parameter, tensor.bf16_parameter, tensor.gradient)};
    sums_of_next += tiling.RowSums(tensor) + tiling.ColumnSums(tensor);
    table.chunks += static_cast<int>(tiling.Tiles());
  }
  return Run(stream, table);
}

}  // namespace weft::kernels::cuda
