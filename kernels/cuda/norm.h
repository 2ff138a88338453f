#pragma once

// LayerNorm and RMSNorm: one kernel each way for both. With kCentered the rows lose their mean and
// gain a bias.

#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/row_group.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// What is normed.
enum class NormRows : uint8_t {
  kWhole,
  kPart,  ///< Columns of longer rows: a kernel writes what others have to know (kernels/norm_part).
  kMasked,  ///< Rows whose columns count by a mask (kernels/masked_norm).
};

/// See LayerNormForwardArgs and RmsNormForwardArgs; contiguous.
template <class T>
struct NormForwardRows {
  const T* residual;
  const T* delta;   ///< or nullptr
  T* residual_out;  ///< or nullptr
  const float* weight;
  const float* bias;  ///< nullptr unless centered, like mean
  float epsilon;
  T* y;
  float* mean;
  float* rscale;
  int64_t rows;
  int width;
  float* found = nullptr;       ///< Of parts alone: MeasureNormPartArgs.
  const float* mask = nullptr;  ///< With a mask alone.
};

template <class T>
struct NormBackwardRows {
  const T* dy;
  const T* x;
  const float* weight;
  const float* mean;
  const float* rscale;
  const T* dresidual;  ///< or nullptr
  T* dx;
  float* partial;  ///< [blocks, 2, width] sums for dweight and dbias, or nullptr
  int64_t rows;
  int width;
  float* found = nullptr;       ///< Of parts alone: MeasureNormGradientPartArgs.
  const float* mask = nullptr;  ///< With a mask alone.
};

/// The mask of some columns, which is 1 without one.
template <NormRows kRows, int kCount>
__device__ void LoadMask(const float* mask, float (&values)[kCount]) {
  if constexpr (kRows == NormRows::kMasked) {
    LoadFloats(mask, values);
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = 1;
  }
}

/// Reads a row once and keeps it in registers.
template <bool kCentered, NormRows kRows, class T, int kCount>
__global__ void __launch_bounds__(kRowThreads) NormForwardKernel(NormForwardRows<T> a, int warps) {
  constexpr int kVectors = kRowElements / kCount;
  RowGroup group(warps);
  const int64_t row = int64_t{blockIdx.x} * group.groups + group.index;
  const int64_t base = row * a.width;
  // Columns from here on, one vector each `step`; none of a row that is not there.
  const int first = group.thread * kCount, step = group.threads * kCount;
  const int end = row < a.rows ? a.width : 0;

  Packed<T, kCount> loaded[kVectors], delta[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * step < end) {
      loaded[i] = LoadPacked<kCount>(a.residual + base + first + i * step);
    }
  }
  if (a.delta != nullptr) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (first + i * step < end) delta[i] = LoadPacked<kCount>(a.delta + base + first + i * step);
    }
  }
  constexpr bool kMasked = kRows == NormRows::kMasked;
  float x[kVectors][kCount];
  float sum[kMasked ? 2 : 1] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * step >= end) continue;
    float mask[kCount];
    LoadMask<kRows>(a.mask + first + i * step, mask);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[i][k] = loaded[i][k];
      // The norm sees what is stored, so that the backward pass, which reads it, agrees.
      if (a.delta != nullptr) x[i][k] = Widen(Narrow<T>(x[i][k] + delta[i][k]));
      sum[0] += mask[k] * (kCentered ? x[i][k] : x[i][k] * x[i][k]);
      if constexpr (kMasked) sum[1] += mask[k];
    }
    if (a.delta != nullptr) StoreFloats(a.residual_out + base + first + i * step, x[i]);
  }
  group.Sum(sum);
  const float columns = kMasked ? sum[kMasked ? 1 : 0] : static_cast<float>(a.width);
  float mean = 0, squares[1] = {sum[0]};
  if constexpr (kCentered) {
    mean = sum[0] / columns;
    squares[0] = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (first + i * step >= end) continue;
      float mask[kCount];
      LoadMask<kRows>(a.mask + first + i * step, mask);
#pragma unroll
      for (int k = 0; k < kCount; ++k) squares[0] += mask[k] * (x[i][k] - mean) * (x[i][k] - mean);
    }
    group.Sum(squares);
  }
  if constexpr (kRows == NormRows::kPart) {
    if (end == 0 || group.thread != 0) return;
    if constexpr (kCentered) a.found[row] = mean;
    a.found[(kCentered ? a.rows : 0) + row] = squares[0];
  } else {
    const float rscale = rsqrtf(squares[0] / columns + a.epsilon);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = first + i * step;
      if (c >= end) continue;
      float weight[kCount], mask[kCount], bias[kCount] = {};
      LoadFloats(a.weight + c, weight);
      LoadMask<kRows>(a.mask + c, mask);
      if constexpr (kCentered) LoadFloats(a.bias + c, bias);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        x[i][k] = ((x[i][k] - mean) * rscale * weight[k] + bias[k]) * mask[k];
      }
      StoreFloats(a.y + base + c, x[i]);
    }
    if (end > 0 && group.thread == 0) {
      if constexpr (kCentered) a.mean[row] = mean;
      a.rscale[row] = rscale;
    }
  }
}

/// Columns that are summed for a width: whole steps of kCount for each of `threads` threads.
__host__ __device__ constexpr int SummedColumns(int width, int threads, int count) {
  const int step = threads * count;
  return (width + step - 1) / step * step;
}

/// Blocks take rows in turn and sum for dweight and dbias in shared memory, [groups, 2,
/// SummedColumns], where each element has one thread. Eight neighbours of a thread are `threads`
/// apart there, so that a warp meets all banks; four are one access.
template <bool kCentered, NormRows kRows, class T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    NormBackwardKernel(NormBackwardRows<T> a, int warps) {
  constexpr int kVectors = kRowElements / kCount;
  // Single elements are read a second time instead of kept: they take too many registers.
  constexpr bool kKeeps = kCount > 1;
  [[maybe_unused]] constexpr int kUnroll = kKeeps ? kVectors : 4;
  RowGroup group(warps);
  const int first = group.thread * kCount, step = group.threads * kCount;
  const int summed = SummedColumns(a.width, group.threads, kCount);
  constexpr bool kSpread = kCount > 4;
  const int apart = kSpread ? group.threads : 1;
  float* own =
      DynamicShared<float>() + int64_t{group.index} * 2 * summed + (kSpread ? group.thread : first);
  if (a.partial != nullptr) {
    for (int c = 0; first + c < a.width; c += step) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) own[c + k * apart] = own[summed + c + k * apart] = 0;
    }
  }
  const int64_t stride = int64_t{gridDim.x} * group.groups;
  for (int64_t top = int64_t{blockIdx.x} * group.groups; top < a.rows; top += stride) {
    const int64_t row = top + group.index, base = row * a.width;
    const int end = row < a.rows ? a.width : 0;
    const float mean = kCentered && end > 0 ? a.mean[row] : 0.0f;
    const float rscale = end > 0 ? a.rscale[row] : 0.0f;
    using Elements = Packed<T, kCount>;
    Elements kept[2][kKeeps ? kVectors : 1];
    if constexpr (kKeeps) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (first + i * step >= end) continue;
        kept[0][i] = LoadPacked<kCount>(a.x + base + first + i * step);
        kept[1][i] = LoadPacked<kCount>(a.dy + base + first + i * step);
      }
    }
    const auto element = [&](const T* from, const Elements* kept_from, int i) -> Elements {
      if constexpr (kKeeps) {
        return kept_from[i];
      } else {
        return LoadPacked<kCount>(from + base + first + i * step);
      }
    };
    // With g = dy * weight: dx = rscale (g - avg(g) - normed avg(g normed)), times the mask, which
    // also weighs what is averaged.
    constexpr bool kMasked = kRows == NormRows::kMasked;
    float sums[kMasked ? 3 : 2] = {};
#pragma unroll kUnroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = first + i * step;
      if (c >= end) continue;
      const Elements x = element(a.x, kept[0], i), dy = element(a.dy, kept[1], i);
      float weight[kCount], mask[kCount];
      LoadFloats(a.weight + c, weight);
      LoadMask<kRows>(a.mask + c, mask);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float d = dy[k] * mask[k], g = d * weight[k], normed = (x[k] - mean) * rscale;
        sums[0] += g * normed;
        sums[1] += g;
        if constexpr (kMasked) sums[2] += mask[k];
        if (a.partial != nullptr) {
          float* const sum = own + i * step + k * apart;
          *sum += d * normed;
          if constexpr (kCentered) sum[summed] += d;
        }
      }
    }
    group.Sum(sums);
    if constexpr (kRows == NormRows::kPart) {
      if (end == 0 || group.thread != 0) continue;
      if constexpr (kCentered) a.found[row] = sums[1];
      a.found[(kCentered ? a.rows : 0) + row] = sums[0];
    } else {
      const float columns = kMasked ? sums[kMasked ? 2 : 0] : static_cast<float>(a.width);
      const float mean_gx = sums[0] / columns;
      const float mean_g = kCentered ? sums[1] / columns : 0.0f;
      const int again = ptx::Anew(first);
#pragma unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        const int c = again + i * step;
        if (c >= end) continue;
        const Elements x = element(a.x, kept[0], i), dy = element(a.dy, kept[1], i);
        float weight[kCount], mask[kCount], dx[kCount], beside[kCount] = {};
        LoadFloats(a.weight + c, weight);
        LoadMask<kRows>(a.mask + c, mask);
        if (a.dresidual != nullptr) LoadFloats(a.dresidual + base + c, beside);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const float normed = (x[k] - mean) * rscale;
          dx[k] = (dy[k] * weight[k] - mean_g - normed * mean_gx) * mask[k] * rscale + beside[k];
        }
        StoreFloats(a.dx + base + c, dx);
      }
    }
  }
  if (a.partial == nullptr) return;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < 2 * a.width; c += static_cast<int>(blockDim.x)) {
    const int half = c < a.width ? 0 : 1, column = c - half * a.width, of_step = column % step;
    const int place = kSpread ? of_step % kCount * apart + of_step / kCount : of_step;
    const float* all = DynamicShared<float>() + half * summed + column - of_step + place;
    float sum = 0;
    for (int g = 0; g < group.groups; ++g) sum += all[g * 2 * summed];
    a.partial[int64_t{blockIdx.x} * 2 * a.width + c] = sum;
  }
}

inline Status CheckRowWidth(std::string_view op, int64_t width) {
  if (width <= kMostRowWidth) return OkStatus();
  return InvalidError(std::string(op) + ": rows of " + std::to_string(width) +
                      " elements are wider than the " + std::to_string(kMostRowWidth) +
                      " that its CUDA kernel holds");
}

template <bool kCentered, class T, NormRows kRows = NormRows::kWhole>
Status NormForward(const Stream& stream, std::string_view op, const NormForwardRows<T>& rows) {
  WEFT_RETURN_IF_ERROR(CheckRowWidth(op, rows.width));
  const RowShape shape = RowShapeOf(rows.width);
  const bool wide =
      rows.width % kWide<T> == 0 && Aligned16(rows.residual, rows.delta, rows.residual_out,
                                              rows.weight, rows.bias, rows.mask, rows.y);
  return Launch(stream, op,
                {.grid = {CeilDiv(rows.rows, shape.groups)}, .block = {shape.threads()}},
                wide ? NormForwardKernel<kCentered, kRows, T, kWide<T>>
                     : NormForwardKernel<kCentered, kRows, T, 1>,
                rows, shape.warps);
}

/// dweight and dbias are added to; either may be nullptr.
template <bool kCentered, class T, NormRows kRows = NormRows::kWhole>
Status NormBackward(const Stream& stream, std::string_view op, NormBackwardRows<T> rows,
                    float* dweight, float* dbias) {
  WEFT_RETURN_IF_ERROR(CheckRowWidth(op, rows.width));
  if (rows.rows == 0) return OkStatus();
  RowShape shape = RowShapeOf(rows.width);
  const bool sums = dweight != nullptr || dbias != nullptr;
  const bool wide = rows.width % kWide<T> == 0 &&
                    Aligned16(rows.dy, rows.x, rows.weight, rows.mask, rows.dresidual, rows.dx);
  const int summed = SummedColumns(rows.width, shape.warps * kWarp, wide ? kWide<T> : 1);
  const auto shared_bytes = [&] {
    return sums ? shape.groups * 2 * summed * sizeof(float) : size_t{0};
  };
  // Few enough rows side by side that several blocks fit on a multiprocessor.
  while (shape.groups > 1 && shared_bytes() > (size_t{48} << 10)) --shape.groups;
  constexpr int kBlocksPerMultiprocessor = 4;
  const unsigned blocks =
      std::min(CeilDiv(rows.rows, shape.groups),
               static_cast<unsigned>(stream.cuda->limits().multiprocessors *
                                     (shape.warps <= 4 ? kBlocksPerMultiprocessor : 1)));
  if (sums) {
    WEFT_ASSIGN_OR_RETURN(rows.partial,
                          ScratchOf<float>(stream, op, int64_t{blocks} * 2 * rows.width));
  }
  WEFT_RETURN_IF_ERROR(Launch(
      stream, op, {.grid = {blocks}, .block = {shape.threads()}, .shared_bytes = shared_bytes()},
      wide ? NormBackwardKernel<kCentered, kRows, T, kWide<T>>
           : NormBackwardKernel<kCentered, kRows, T, 1>,
      rows, shape.warps));
  if (!sums) return OkStatus();
  return AddPartialSums(stream, op, rows.partial, static_cast<int>(blocks), rows.width, dweight,
                        dbias);
}

}  // namespace weft::kernels::cuda
