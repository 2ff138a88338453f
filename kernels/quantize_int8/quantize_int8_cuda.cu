#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.h"
#include "kernels/dtype.h"
#include "kernels/quantize_int8/quantize_int8.h"
#include "kernels/quantize_int8/quantize_int8_check.h"

namespace weft::kernels::cuda {
namespace {

// Elements that a thread takes at a time: 16 bytes of quantised values.
constexpr int kRun = 16;

template <class T>
struct Problem {
  T* values;
  int64_t stride;
  uint8_t* q;
  float* scale;
  int64_t columns;
  int64_t group;
  int64_t groups;  // of a row
  int64_t count;   // of groups
  int lanes;       // that share a group: a power of two
};

// Where a thread works: some lanes of its warp have a group.
template <class T>
struct GroupPart {
  T* values;
  uint8_t* q;
  int64_t number;
  int64_t width;
  int lane;

  __device__ explicit GroupPart(const Problem<T>& p) {
    const int thread = static_cast<int>(threadIdx.x);
    number = (int64_t{blockIdx.x} * kBlockThreads + thread) / p.lanes;
    lane = thread % p.lanes;
    const int64_t row = number / p.groups, column = number % p.groups * p.group;
    // None of a group that is not there.
    width = number < p.count ? std::min(p.group, p.columns - column) : 0;
    values = p.values + row * p.stride + column;
    q = p.q + row * p.columns + column;
  }
};

template <bool kWideRows, class T>
__device__ void LoadRun(const T* from, int64_t left, float (&to)[kRun]) {
  if constexpr (kWideRows) {
    LoadFloats(from, to);
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) to[k] = k < left ? Widen(from[k]) : 0.0f;
  }
}

template <bool kWideRows, class T>
__global__ void __launch_bounds__(kBlockThreads) QuantizeKernel(Problem<const T> p) {
  const GroupPart<const T> part(p);
  const int64_t first = int64_t{part.lane} * kRun, step = int64_t{p.lanes} * kRun;
  float run[kRun] = {};
  uint32_t largest_bits = 0;
  for (int64_t c = first; c < part.width; c += step) {
    LoadRun<kWideRows>(part.values + c, part.width - c, run);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const uint32_t bits = __float_as_uint(run[k]) & 0x7fffffffu;
      largest_bits = bits > largest_bits ? bits : largest_bits;
    }
  }
  for (int bits = 1; bits < p.lanes; bits *= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, largest_bits, bits);
    largest_bits = other > largest_bits ? other : largest_bits;
  }
  const float largest = __uint_as_float(largest_bits);
  const bool finite = largest_bits < 0x7f800000u,
             compressed = finite && largest >= kSmallestInt8Group;
  const float factor = compressed ? kLargestInt8 / largest : 0.0f;
  if (part.width > 0 && part.lane == 0) {
    p.scale[part.number] = compressed ? largest / kLargestInt8
                           : finite   ? 0.0f
                                      : __uint_as_float(0x7fc00000u);
  }
  for (int64_t c = first; c < part.width; c += step) {
    // The run of a group that is no longer than one is still there.
    if (part.width > step) LoadRun<kWideRows>(part.values + c, part.width - c, run);
    uint32_t words[kRun / 4] = {};
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const int code = compressed ? __float2int_rn(run[k] * factor) : 0;
      words[k / 4] |= (static_cast<uint32_t>(code) & 0xffu) << 8 * (k % 4);
    }
    if constexpr (kWideRows) {
      ptx::Store16(part.q + c, uint4{words[0], words[1], words[2], words[3]});
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (c + k < part.width) part.q[c + k] = static_cast<uint8_t>(words[k / 4] >> 8 * (k % 4));
      }
    }
  }
}

template <bool kWideRows, class T>
__global__ void __launch_bounds__(kBlockThreads) DequantizeKernel(Problem<T> p) {
  const GroupPart<T> part(p);
  if (part.width == 0) return;
  const float scale = p.scale[part.number];
  for (int64_t c = int64_t{part.lane} * kRun; c < part.width; c += int64_t{p.lanes} * kRun) {
    uint32_t words[kRun / 4] = {};
    if constexpr (kWideRows) {
      const uint4 four = ptx::Load16(part.q + c);
      words[0] = four.x;
      words[1] = four.y;
      words[2] = four.z;
      words[3] = four.w;
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (c + k < part.width) words[k / 4] |= uint32_t{part.q[c + k]} << 8 * (k % 4);
      }
    }
    float run[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const auto code = static_cast<int8_t>(words[k / 4] >> 8 * (k % 4));
      run[k] = static_cast<float>(code) * scale;
    }
    if constexpr (kWideRows) {
      StoreFloats(part.values + c, run);
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (c + k < part.width) part.values[c + k] = Narrow<T>(run[k]);
      }
    }
  }
}

template <class T>
Problem<T> ProblemOf(const TensorView& values, const TensorView& q, const TensorView& scale,
                     int64_t group) {
  const int64_t columns = values.shape[1], groups = Int8Groups(columns, group);
  const int64_t most = std::max<int64_t>(CeilDiv(std::min(group, columns), int64_t{kRun}), 1);
  int lanes = 1;
  while (lanes < kWarp && lanes < most) lanes *= 2;
  return {.values = values.As<std::remove_const_t<T>>(),
          .stride = values.row_stride,
          .q = static_cast<uint8_t*>(q.data),
          .scale = scale.As<float>(),
          .columns = columns,
          .group = group,
          .groups = groups,
          .count = values.shape[0] * groups,
          .lanes = lanes};
}

template <class T>
bool IsWide(const Problem<T>& p) {
  // Also the last group of a row is whole runs.
  return Aligned16(p.values, p.q) && p.stride % kWide<std::remove_const_t<T>> == 0 &&
         p.columns % kRun == 0 && p.group % kRun == 0;
}

template <class T>
LaunchShape ShapeOf(const Problem<T>& p) {
  return {.grid = {CeilDiv(p.count * p.lanes, kBlockThreads)}, .block = {kBlockThreads}};
}

}  // namespace

Status QuantizeInt8(const Stream& stream, const QuantizeInt8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckQuantizeInt8(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const auto problem = ProblemOf<const T>(args.x, args.q, args.scale, args.group);
    return Launch(stream, "QuantizeInt8", ShapeOf(problem),
                  IsWide(problem) ? QuantizeKernel<true, T> : QuantizeKernel<false, T>, problem);
  });
}

Status DequantizeInt8(const Stream& stream, const DequantizeInt8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckDequantizeInt8(stream, args));
  return WithFloatType(args.y.dtype, [&]<class T>() {
    const auto problem = ProblemOf<T>(args.y, args.q, args.scale, args.group);
    return Launch(stream, "DequantizeInt8", ShapeOf(problem),
                  IsWide(problem) ? DequantizeKernel<true, T> : DequantizeKernel<false, T>,
                  problem);
  });
}

}  // namespace weft::kernels::cuda
