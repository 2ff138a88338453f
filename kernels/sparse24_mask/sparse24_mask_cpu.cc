#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mask/sparse24_mask_check.h"
#include "kernels/sparse24_mask/sparse24_mask_simd.h"

namespace weft::kernels::cpu {
namespace {

struct NewMask;  // A use of scratch memory.

template <class T>
void RunLoop(MaskLoop<T> loop, const TensorView& weight, const TensorView& mask,
             const TensorView& flips) {
  const int64_t rows = mask.shape[0], blocks = mask.shape[1];
  constexpr int64_t kGrainBlocks = 1024;
  const int64_t grain = std::max<int64_t>(kGrainBlocks / std::max<int64_t>(blocks, 1), 1);
  ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
    auto* found = ThreadScratch<NewMask, uint16_t>(blocks);
    for (int64_t row = begin; row < end; ++row) {
      loop(weight.As<T>() + 4 * row * weight.row_stride, weight.row_stride, blocks, found);
      uint16_t* to = mask.As<uint16_t>() + row * blocks;
      if (flips) {
        int32_t changed = 0;
        for (int64_t i = 0; i < blocks; ++i) {
          changed += std::popcount(static_cast<uint16_t>(found[i] ^ to[i]));
        }
        flips.As<int32_t>()[row] = changed;
      }
      std::copy_n(found, blocks, to);
    }
  });
}

// The third largest of four is the lesser of the larger smaller one and the smaller larger one of
// two pairs.
template <class T>
void ShrinkRow(const T* weight, float scale, int64_t columns, float* y) {
  for (int64_t c = 0; c < columns; c += 4) {
    float w[4], a[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = ToFloat(weight[c + i]);
      a[i] = w[i] == w[i] ? std::abs(w[i]) : 0.0f;
    }
    const float threshold = std::min(std::max(std::min(a[0], a[1]), std::min(a[2], a[3])),
                                     std::min(std::max(a[0], a[1]), std::max(a[2], a[3])));
    for (int i = 0; i < 4; ++i) {
      y[c + i] = a[i] > threshold ? scale * std::copysign(a[i] - threshold, w[i]) : 0.0f;
    }
  }
}

void RunLoops(const MaskLoops& loops, const TensorView& weight, const TensorView& mask,
              const TensorView& flips) {
  if (weight.dtype == DType::kF32) return RunLoop(loops.f32, weight, mask, flips);
  RunLoop(loops.bf16, weight, mask, flips);
}

}  // namespace

Status TransposableMask(const Stream& stream, const TransposableMaskArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMask(stream, "TransposableMask", args.weight, args.mask, args.flips));
  RunLoops(PickMaskKernels().transposable, args.weight, args.mask, args.flips);
  return OkStatus();
}

Status RowMask(const Stream& stream, const RowMaskArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMask(stream, "RowMask", args.weight, args.mask, args.flips));
  RunLoops(PickMaskKernels().rows, args.weight, args.mask, args.flips);
  return OkStatus();
}

Status SoftThreshold(const Stream& stream, const SoftThresholdArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSoftThreshold(stream, args));
  const auto run = [&]<class T>() {
    ParallelFor(args.weight.shape[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        ShrinkRow(args.weight.As<T>() + row * args.weight.row_stride, args.scale,
                  args.weight.shape[1], args.y.As<float>() + row * args.y.row_stride);
      }
    });
  };
  if (args.weight.dtype == DType::kBF16) {
    run.template operator()<BFloat16>();
  } else {
    run.template operator()<float>();
  }
  return OkStatus();
}

}  // namespace weft::kernels::cpu
