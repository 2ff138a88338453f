#include "kernels/activation/activation.h"
#include "kernels/activation/activation_simd.h"
#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

}  // namespace

Status GeluForward(const Stream& stream, const GeluForwardArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "GeluForward")
                           .ContiguousTensor("x", x, x.shape, {DType::kF32, DType::kBF16})
                           .ContiguousTensor("y", y, x.shape, {x.dtype})
                           .status());
  const GeluKernels& kernels = PickGeluKernels();
  ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (x.dtype == DType::kF32) {
      kernels.forward_f32(x.As<float>() + begin, y.As<float>() + begin, end - begin);
    } else {
      kernels.forward_bf16(x.As<BFloat16>() + begin, y.As<BFloat16>() + begin, end - begin);
    }
  });
  return OkStatus();
}

Status GeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  ArgumentCheck check(stream, "GeluBackward");
  check.ContiguousTensor("x", x, x.shape, {DType::kF32, DType::kBF16})
      .ContiguousTensor("dy", dy, x.shape, {x.dtype})
      .ContiguousTensor("dx", dx, x.shape, {x.dtype});
  if (y) {
    check.ContiguousTensor("y", y, x.shape, {x.dtype})
        .That(y.data != x.data && y.data != dy.data, "y is x or dy, which are still read");
  }
  WEFT_RETURN_IF_ERROR(check.status());
  const GeluKernels& kernels = PickGeluKernels();
  ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (x.dtype == DType::kF32) {
      kernels.backward_f32(dy.As<float>() + begin, x.As<float>() + begin, dx.As<float>() + begin,
                           y ? y.As<float>() + begin : nullptr, end - begin);
    } else {
      kernels.backward_bf16(dy.As<BFloat16>() + begin, x.As<BFloat16>() + begin,
                            dx.As<BFloat16>() + begin, y ? y.As<BFloat16>() + begin : nullptr,
                            end - begin);
    }
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
