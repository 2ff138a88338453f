// Emulation: the numbers of FP8 values are exact in bf16, and the products of those in f32.

#include <algorithm>
#include <memory>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "kernels/linear_fp8/linear_fp8_check.h"
#include "kernels/linear_fp8/linear_fp8_simd.h"

namespace weft::kernels::cpu {
namespace {

// Sums of this many bytes at a time are kept in f32, apart from the result.
constexpr int64_t kSumBytes = int64_t{16} << 20;

// Memory of the calling thread for operands and sums.
struct Scratch {
  AlignedMemory a, b, sums;
  size_t a_bytes = 0, b_bytes = 0, sums_bytes = 0;
};

Result<void*> Grown(AlignedMemory& memory, size_t& held, size_t bytes) {
  if (held < bytes) {
    memory = AllocateAligned(bytes);
    held = memory == nullptr ? 0 : bytes;
  }
  if (memory == nullptr) {
    return ExhaustedError("MatmulFp8: no memory for " + std::to_string(bytes) + " bytes");
  }
  return static_cast<void*>(memory.get());
}

TensorView Widened(const TensorView& codes, void* memory) {
  const LinearFp8Kernels& kernels = PickLinearFp8Kernels();
  const auto widen = codes.dtype == DType::kF8E4M3 ? kernels.widen_e4m3 : kernels.widen_e5m2;
  TensorView wide(memory, DType::kBF16, codes.shape);
  ParallelFor(codes.shape.Elements(), 4096, [&](int64_t begin, int64_t end) {
    widen(static_cast<const uint8_t*>(codes.data) + begin, wide.As<BFloat16>() + begin,
          end - begin);
  });
  return wide;
}

void FinishRows(const MatmulFp8Args& args, const TensorView& sums, int64_t first_row) {
  const LinearFp8Kernels& kernels = PickLinearFp8Kernels();
  const float scale_a = *args.a.inverse_scale.As<float>();
  const float scale_b = *args.b.inverse_scale.As<float>();
  const BFloat16* bias = args.bias ? args.bias.As<BFloat16>() : nullptr;
  const int64_t n = args.c.shape[1];
  ParallelFor(sums.shape[0], 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* sum = sums.As<float>() + r * n;
      const int64_t at = (first_row + r) * n;
      if (args.c.dtype == DType::kF32) {
        kernels.finish_f32(sum, scale_a, scale_b, args.accumulate, args.c.As<float>() + at, n);
      } else {
        kernels.finish(sum, scale_a, scale_b, bias, args.c.As<BFloat16>() + at, n);
      }
    }
  });
}

}  // namespace

Status MatmulFp8(const Stream& stream, const MatmulFp8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckMatmulFp8(stream, args));
  const int64_t m = args.a.codes.shape[0], n = args.b.codes.shape[0], k = args.a.codes.shape[1];
  if (m == 0) return OkStatus();
  thread_local Scratch scratch;
  WEFT_ASSIGN_OR_RETURN(void* b, Grown(scratch.b, scratch.b_bytes, 2 * n * k));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> weight,
                        NewPackedWeight(stream.device, n, k, DType::kBF16));
  WEFT_RETURN_IF_ERROR(weight->Pack(stream, Widened(args.b.codes, b)));
  const int64_t rows_at_once =
      std::clamp<int64_t>(kSumBytes / (4 * n), 64, std::max<int64_t>(m, 64));
  for (int64_t row = 0; row < m; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, m - row);
    WEFT_ASSIGN_OR_RETURN(void* a, Grown(scratch.a, scratch.a_bytes, 2 * rows * k));
    WEFT_ASSIGN_OR_RETURN(void* sums, Grown(scratch.sums, scratch.sums_bytes, 4 * rows * n));
    TensorView codes(static_cast<uint8_t*>(args.a.codes.data) + row * k, args.a.codes.dtype,
                     {rows, k});
    const TensorView sum(sums, DType::kF32, {rows, n});
    WEFT_RETURN_IF_ERROR(
        LinearForward(stream, {.x = Widened(codes, a), .weight = weight.get(), .y = sum}));
    FinishRows(args, sum, row);
  }
  return OkStatus();
}

}  // namespace weft::kernels::cpu
