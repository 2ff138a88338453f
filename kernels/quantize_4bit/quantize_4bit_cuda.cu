#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"
#include "kernels/dtype.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "kernels/quantize_4bit/quantize_4bit_check.h"

namespace weft::kernels::cuda {
namespace {

// Successive elements of a thread, all of one block: 8 bytes of them.
constexpr int kRun = 16;

struct Tables {
  float values[16];
  float scales[256];
};

template <class T>
struct Problem {
  const uint8_t* bytes;
  int64_t scales;
  int64_t scales_of_scales;
  int64_t mean;
  int64_t block_size;
  // Describe a part, see FourBitPart; the whole tensor has run 0.
  int64_t first;
  int64_t run;
  int64_t stride;
  T* y;
  int64_t count;
};

template <class T>
__device__ float ScaleOf(const Problem<T>& p, const float* scales, int64_t block, bool compressed) {
  if (!compressed) return reinterpret_cast<const float*>(p.bytes + p.scales)[block];
  const float* of_scales = reinterpret_cast<const float*>(p.bytes + p.scales_of_scales);
  const float mean = *reinterpret_cast<const float*>(p.bytes + p.mean);
  const int64_t of_tensor = p.run == 0 ? block : p.first + block / p.run * p.stride + block % p.run;
  // Two roundings, as on CPUs.
  const float product = __fmul_rn(scales[p.bytes[p.scales + block]],
                                  of_scales[of_tensor / FourBitFormat::kScalesOfBlock]);
  return __fadd_rn(product, mean);
}

template <bool kAligned, bool kCodedScales, class T>
__global__ void __launch_bounds__(kBlockThreads)
    DequantizeKernel(const Problem<T> p, const Tables tables) {
  WEFT_SHARED(values, float[16]);
  WEFT_SHARED(scales, float[256]);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 16) values[thread] = tables.values[thread];
  if (kCodedScales && thread < 256) scales[thread] = tables.scales[thread];
  __syncthreads();
  const int64_t begin = (int64_t{blockIdx.x} * kBlockThreads + thread) * kRun;
  if (begin >= p.count) return;
  const float scale = ScaleOf(p, scales, begin / p.block_size, kCodedScales);
  const int64_t left = p.count - begin;
  const bool whole = kAligned && left >= kRun;
  uint32_t words[2] = {};
  if (whole) {
    const uint2 two = ptx::Load8(p.bytes + begin / 2);
    words[0] = two.x;
    words[1] = two.y;
  } else {
#pragma unroll
    for (int k = 0; k < kRun; k += 2) {
      if (k < left) words[k / 8] |= uint32_t{p.bytes[begin / 2 + k / 2]} << 4 * (k % 8);
    }
  }
  float run[kRun];
#pragma unroll
  for (int k = 0; k < kRun; k += 2) {
    const uint32_t byte = words[k / 8] >> 4 * (k % 8) & 255;
    run[k] = __fmul_rn(values[byte >> 4], scale);
    run[k + 1] = __fmul_rn(values[byte & 15], scale);
  }
  if (whole) {
    StoreFloats(p.y + begin, run);
    return;
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    if (k < left) p.y[begin + k] = Narrow<T>(run[k]);
  }
}

}  // namespace

Status Dequantize4Bit(const Stream& stream, const Dequantize4BitArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckDequantize4Bit(stream, args));
  const int64_t count = args.y.shape.Elements();
  const FourBitLayout layout(args.format, count, args.part);
  Tables tables;
  std::copy_n(FourBitValues(args.format.type).data(), 16, tables.values);
  std::copy_n(FourBitScales().data(), 256, tables.scales);
  return WithFloatType(args.y.dtype, [&]<class T>() {
    const Problem<T> problem = {.bytes = reinterpret_cast<const uint8_t*>(args.words.As<int32_t>()),
                                .scales = layout.scales,
                                .scales_of_scales = layout.scales_of_scales,
                                .mean = layout.mean,
                                .block_size = args.format.block_size,
                                .first = args.part.first,
                                .run = args.part.run,
                                .stride = args.part.stride,
                                .y = args.y.As<T>(),
                                .count = count};
    const bool aligned = Aligned16(problem.y, problem.bytes);
    const LaunchShape shape = {.grid = {CeilDiv(count, int64_t{kBlockThreads} * kRun)},
                               .block = {kBlockThreads}};
    const auto launch = [&](auto kernel) {
      return Launch(stream, "Dequantize4Bit", shape, kernel, problem, tables);
    };
    if (args.format.double_quantization) {
      return launch(aligned ? DequantizeKernel<true, true, T> : DequantizeKernel<false, true, T>);
    }
    return launch(aligned ? DequantizeKernel<true, false, T> : DequantizeKernel<false, false, T>);
  });
}

}  // namespace weft::kernels::cuda
