#include <cmath>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/random_words.h"
#include "kernels/cuda/vector.h"
#include "kernels/dtype.h"
#include "kernels/group_quantize/group_quantize.h"
#include "kernels/group_quantize/group_quantize_check.h"
#include "kernels/step_value.h"

namespace weft::kernels::cuda {
namespace {

// Successive elements of a lane; eight lanes share a group.
constexpr int kRun = 16;
constexpr int kLanes = static_cast<int>(kQuantizeGroup) / kRun;

template <class T>
struct Problem {
  T* values;
  int64_t count;
  uint8_t* codes;
  float* scales;
  int bits;
};

// Where a lane works. It has the quantised values of its elements in some bits of 16 bytes, in
// which those of the lanes that are `bits` away, twice as many and so on, have the others.
template <class T>
struct GroupPart {
  T* values;
  int there;  // of the run's elements
  int64_t group;
  int lane;
  uint8_t* codes;
  int shift;

  __device__ explicit GroupPart(const Problem<T>& p) {
    const int64_t number = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
    const int64_t begin = number * kRun, left = p.count - begin;
    values = p.values + begin;
    there = left <= 0 ? 0 : left < kRun ? static_cast<int>(left) : kRun;
    group = number / kLanes;
    lane = static_cast<int>(number % kLanes);
    codes = p.codes + group * kRun * p.bits + lane % p.bits * kRun;
    shift = lane / p.bits * p.bits;
  }
};

template <bool kAligned, class T>
__device__ void LoadRun(const GroupPart<const T>& part, float (&run)[kRun]) {
  if (kAligned && part.there == kRun) {
    LoadFloats(part.values, run);
    return;
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) run[k] = k < part.there ? Widen(part.values[k]) : 0.0f;
}

// The least and the largest number of a group, in all its lanes: zeros without their sign, and both
// infinite where there is a NaN.
__device__ void Extremes(const float (&run)[kRun], int there, float& least, float& largest) {
  const float infinity = __uint_as_float(0x7f800000u);
  least = infinity;
  largest = -infinity;
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    if (k >= there) continue;
    least = fminf(least, run[k]);
    largest = fmaxf(largest, run[k]);
    if (run[k] != run[k]) {
      least = -infinity;
      largest = infinity;
    }
  }
#pragma unroll
  for (int bits = 1; bits < kLanes; bits *= 2) {
    least = fminf(least, __shfl_xor_sync(kAllLanes, least, bits));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bits));
  }
  least += 0.0f;
  largest += 0.0f;
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kBlockThreads)
    QuantizeKernel(Problem<const T> p, PhiloxKey key, StepValue<uint32_t> step_number,
                   uint64_t first_element, uint64_t elements, uint64_t run_stride) {
  const GroupPart<const T> part(p);
  float run[kRun];
  LoadRun<kAligned>(part, run);
  float least, largest;
  Extremes(run, part.there, least, largest);
  const auto most = static_cast<float>((1 << p.bits) - 1);
  const float spread = largest - least;
  float step = spread / most;
  // One NaN of the many that there are.
  if (!(spread <= __uint_as_float(0x7f7fffffu))) least = step = __uint_as_float(0x7fc00000u);
  const float inverse = step > 0 ? 1.0f / step : 0.0f;

  key.step = step_number.Get();
  const uint64_t begin = static_cast<uint64_t>(part.group) * kQuantizeGroup;
  const uint64_t element =
      first_element + begin / elements * run_stride + begin % elements + part.lane * kRun;
  uint32_t packed[kRun / 4];
#pragma unroll
  for (int w = 0; w < kRun / 4; ++w) {
    uint32_t words[4];
    RandomWords(key, element + 4 * w, words);
    packed[w] = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float place = (run[4 * w + k] - least) * inverse;
      // That product is exact: the sum is rounded as if it were not fused.
      const float v = fmaf(static_cast<float>(words[k] >> 8), 0x1.0p-24f, place);
      // A NaN gives way to zero.
      const auto code = static_cast<uint32_t>(fminf(fmaxf(v, 0.0f), most));
      packed[w] |= (4 * w + k < part.there ? code : 0) << 8 * k;
    }
    packed[w] <<= part.shift;
  }
  for (int lanes = p.bits; lanes < kLanes; lanes *= 2) {
#pragma unroll
    for (int w = 0; w < kRun / 4; ++w) {
      packed[w] |= __shfl_xor_sync(kAllLanes, packed[w], lanes);
    }
  }
  if (part.group * kQuantizeGroup >= p.count) return;
  if (part.lane < 2) p.scales[2 * part.group + part.lane] = part.lane == 0 ? least : step;
  // All lanes that share the 16 bytes have them.
  if (part.shift != 0) return;
  if constexpr (kAligned) {
    ptx::Store16(part.codes, uint4{packed[0], packed[1], packed[2], packed[3]});
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      part.codes[k] = static_cast<uint8_t>(packed[k / 4] >> 8 * (k % 4));
    }
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kBlockThreads) DequantizeKernel(Problem<T> p) {
  const GroupPart<T> part(p);
  if (part.there == 0) return;
  const float least = p.scales[2 * part.group], step = p.scales[2 * part.group + 1];
  uint32_t words[kRun / 4] = {};
  if constexpr (kAligned) {
    const uint4 four = ptx::Load16(part.codes);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) words[k / 4] |= uint32_t{part.codes[k]} << 8 * (k % 4);
  }
  const uint32_t mask = (1u << p.bits) - 1;
  float run[kRun];
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    const uint32_t code = words[k / 4] >> (8 * (k % 4) + part.shift) & mask;
    run[k] = fmaf(static_cast<float>(code), step, least);
  }
  if (kAligned && part.there == kRun) {
    StoreFloats(part.values, run);
    return;
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    if (k < part.there) part.values[k] = Narrow<T>(run[k]);
  }
}

template <class T>
Problem<T> ProblemOf(const TensorView& values, const TensorView& codes, const TensorView& scales,
                     int64_t bits) {
  return {.values = values.As<std::remove_const_t<T>>(),
          .count = values.shape.Elements(),
          .codes = codes.As<uint8_t>(),
          .scales = scales.As<float>(),
          .bits = static_cast<int>(bits)};
}

LaunchShape ShapeOf(int64_t count) {
  return {.grid = {CeilDiv(QuantizeGroups(count) * kLanes, kBlockThreads)},
          .block = {kBlockThreads}};
}

}  // namespace

Status GroupQuantize(const Stream& stream, const GroupQuantizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGroupQuantize(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const auto problem = ProblemOf<const T>(args.x, args.codes, args.scales, args.bits);
    const int64_t whole = QuantizeGroups(problem.count) * kQuantizeGroup + kQuantizeGroup;
    const int64_t run = args.run > 0 ? args.run : whole;
    return Launch(stream, "GroupQuantize", ShapeOf(problem.count),
                  Aligned16(problem.values, problem.codes) ? QuantizeKernel<true, T>
                                                           : QuantizeKernel<false, T>,
                  problem, args.key, StepValue<uint32_t>(args.key.step, args.step),
                  args.first_element, static_cast<uint64_t>(run),
                  static_cast<uint64_t>(args.run_stride));
  });
}

Status GroupDequantize(const Stream& stream, const GroupDequantizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGroupDequantize(stream, args));
  return WithFloatType(args.y.dtype, [&]<class T>() {
    const auto problem = ProblemOf<T>(args.y, args.codes, args.scales, args.bits);
    return Launch(stream, "GroupDequantize", ShapeOf(problem.count),
                  Aligned16(problem.values, problem.codes) ? DequantizeKernel<true, T>
                                                           : DequantizeKernel<false, T>,
                  problem);
  });
}

}  // namespace weft::kernels::cuda
