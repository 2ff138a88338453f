#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/quantize_fp8/quantize_fp8.h"
#include "kernels/quantize_fp8/quantize_fp8_check.h"
#include "kernels/quantize_fp8/quantize_fp8_simd.h"

namespace weft::kernels::cpu {
namespace {

// Rows and columns that are transposed at a time, within the first-level cache.
constexpr int64_t kTileRows = 64, kTileColumns = 256;

// Numbers that are not negative order like their bits, and NaN above all.
void Raise(const TensorView& amax, uint32_t bits) {
  std::atomic_ref<uint32_t> to(*static_cast<uint32_t*>(amax.data));
  uint32_t old = to.load(std::memory_order_relaxed);
  while (old < bits && !to.compare_exchange_weak(old, bits, std::memory_order_relaxed)) {
  }
}

template <class T>
const QuantizeFp8Loops<T>& Loops() {
  const QuantizeFp8Kernels& kernels = PickQuantizeFp8Kernels();
  if constexpr (kDTypeOf<T> == DType::kF32) {
    return kernels.f32;
  } else {
    return kernels.bf16;
  }
}

// Rows [begin, end) of x; with `transposed`, those that are past the last one are zeros.
template <class T>
uint32_t QuantizeRows(const QuantizeFp8Args& args, int64_t begin, int64_t end) {
  const int64_t columns = args.x.shape[1], rows = std::min(end, args.x.shape[0]);
  const float scale = *args.scale.As<float>();
  const bool e4m3 = (args.q ? args.q : args.transposed).dtype == DType::kF8E4M3;
  const auto quantize = e4m3 ? Loops<T>().e4m3 : Loops<T>().e5m2;
  auto* q = static_cast<uint8_t*>(args.q.data);
  auto* transposed = static_cast<uint8_t*>(args.transposed.data);
  uint32_t amax = 0;
  alignas(64) uint8_t tile[kTileRows][kTileColumns];
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t width = std::min(kTileColumns, columns - c);
    for (int64_t r = begin; r < rows; ++r) {
      uint8_t* codes = transposed ? tile[r - begin] : q + r * columns + c;
      amax =
          std::max(amax, quantize(args.x.As<T>() + r * args.x.row_stride + c, scale, codes, width));
      if (transposed && q) std::copy_n(codes, width, q + r * columns + c);
    }
    if (transposed == nullptr) continue;
    for (int64_t r = std::max(begin, rows); r < end; ++r) std::fill_n(tile[r - begin], width, 0);
    for (int64_t k = 0; k < width; ++k) {
      uint8_t* to = transposed + (c + k) * args.transposed.shape[1] + begin;
      for (int64_t r = 0; r < end - begin; ++r) to[r] = tile[r][k];
    }
  }
  return amax;
}

template <class T>
void Run(const QuantizeFp8Args& args) {
  const int64_t rows = args.transposed ? args.transposed.shape[1] : args.x.shape[0];
  ParallelFor((rows + kTileRows - 1) / kTileRows, 1, [&](int64_t first, int64_t last) {
    uint32_t amax = 0;
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t begin = tile * kTileRows, end = std::min(begin + kTileRows, rows);
      if (args.q || args.transposed) {
        amax = std::max(amax, QuantizeRows<T>(args, begin, end));
        continue;
      }
      for (int64_t r = begin; r < end; ++r) {
        amax = std::max(amax,
                        Loops<T>().amax(args.x.As<T>() + r * args.x.row_stride, args.x.shape[1]));
      }
    }
    if (args.amax) Raise(args.amax, amax);
  });
}

}  // namespace

Status QuantizeFp8(const Stream& stream, const QuantizeFp8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckQuantizeFp8(stream, args));
  if (args.x.dtype == DType::kF32) {
    Run<float>(args);
  } else {
    Run<BFloat16>(args);
  }
  return OkStatus();
}

Status UpdateFp8Scales(const Stream& stream, const UpdateFp8ScalesArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUpdateFp8Scales(stream, args));
  const int64_t steps = args.history.shape[1];
  auto *amax = args.amax.As<float>(), *scale = args.scale.As<float>();
  for (int64_t i = 0; i < args.amax.shape[0]; ++i) {
    auto* history = args.history.As<float>() + i * steps;
    history[args.slot] = std::isfinite(amax[i]) ? amax[i] : 0.0f;
    amax[i] = 0;
    const float largest = *std::max_element(history, history + steps);
    if (largest > 0) {
      const float wanted =
          args.largest_code.As<float>()[i] / largest * std::ldexp(1.0f, -args.margin);
      scale[i] = std::clamp(wanted, kSmallestFp8Scale, kLargestFp8Scale);
    }
    args.inverse_scale.As<float>()[i] = 1 / scale[i];
  }
  return OkStatus();
}

}  // namespace weft::kernels::cpu
