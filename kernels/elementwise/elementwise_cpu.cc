#include <algorithm>
#include <cstring>

#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/elementwise/elementwise_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of memory traffic.
constexpr int64_t kGrain = 32768;

}  // namespace

Status Cast(const Stream& stream, const CastArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "Cast")
                           .ContiguousTensor("x", x, x.shape, {DType::kF32, DType::kBF16})
                           .ContiguousTensor("y", y, x.shape, {DType::kF32, DType::kBF16})
                           .status());
  const ElementwiseKernels& kernels = PickElementwiseKernels();
  ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (x.dtype == y.dtype) {
      size_t size = DTypeSize(x.dtype);
      std::memmove(static_cast<char*>(y.data) + begin * size,
                   static_cast<const char*>(x.data) + begin * size, (end - begin) * size);
    } else if (x.dtype == DType::kF32) {
      kernels.to_bf16(x.As<float>() + begin, y.As<BFloat16>() + begin, end - begin);
    } else {
      kernels.to_f32(x.As<BFloat16>() + begin, y.As<float>() + begin, end - begin);
    }
  });
  return OkStatus();
}

Status Add(const Stream& stream, const AddArgs& args) {
  const TensorView &a = args.a, &b = args.b, &y = args.y;
  WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "Add")
                           .ContiguousTensor("a", a, a.shape, {DType::kF32, DType::kBF16})
                           .ContiguousTensor("b", b, a.shape, {a.dtype})
                           .ContiguousTensor("y", y, a.shape, {a.dtype})
                           .status());
  const ElementwiseKernels& kernels = PickElementwiseKernels();
  ParallelFor(a.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (a.dtype == DType::kF32) {
      kernels.add_f32(a.As<float>() + begin, b.As<float>() + begin, y.As<float>() + begin,
                      end - begin);
    } else {
      kernels.add_bf16(a.As<BFloat16>() + begin, b.As<BFloat16>() + begin, y.As<BFloat16>() + begin,
                       end - begin);
    }
  });
  return OkStatus();
}

Status Fill(const Stream& stream, const FillArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(
      ArgumentCheck(stream, "Fill")
          .ContiguousTensor("x", x, x.shape, {DType::kF32, DType::kBF16, DType::kI32})
          .status());
  ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (x.dtype == DType::kF32) {
      std::fill(x.As<float>() + begin, x.As<float>() + end, args.value);
    } else if (x.dtype == DType::kBF16) {
      std::fill(x.As<BFloat16>() + begin, x.As<BFloat16>() + end, ToBFloat16(args.value));
    } else {
      std::fill(x.As<int32_t>() + begin, x.As<int32_t>() + end, static_cast<int32_t>(args.value));
    }
  });
  return OkStatus();
}

Status Scale(const Stream& stream, const ScaleArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "Scale")
                           .ContiguousTensor("x", x, x.shape, {DType::kF32, DType::kBF16})
                           .status());
  const ElementwiseKernels& kernels = PickElementwiseKernels();
  ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    if (x.dtype == DType::kF32) {
      kernels.scale_f32(x.As<float>() + begin, args.factor, end - begin);
    } else {
      kernels.scale_bf16(x.As<BFloat16>() + begin, args.factor, end - begin);
    }
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
