#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/elementwise/elementwise_check.h"
#include "kernels/elementwise/elementwise_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of memory traffic.
constexpr int64_t kGrain = 32768;

}  // namespace

Status Cast(const Stream& stream, const CastArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckCast(stream, args));
  if (x.shape.Elements() == 0) return OkStatus();
  if (x.dtype == y.dtype) {
    std::memmove(y.data, x.data, x.Bytes());
    return OkStatus();
  }
  const bool widen = y.dtype == DType::kF32;
  WithFloatType(widen ? x.dtype : y.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      if (widen) {
        loops.to_f32(x.As<T>() + begin, y.As<float>() + begin, end - begin);
      } else {
        loops.from_f32(x.As<float>() + begin, y.As<T>() + begin, end - begin);
      }
    });
  });
  return OkStatus();
}

Status Add(const Stream& stream, const AddArgs& args) {
  const TensorView &a = args.a, &b = args.b, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckAdd(stream, args));
  WithFloatType(a.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(a.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.add(a.As<T>() + begin, b.As<T>() + begin, y.As<T>() + begin, end - begin);
    });
  });
  return OkStatus();
}

Status Fill(const Stream& stream, const FillArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckFill(stream, args));
  const auto fill = [&](auto value) {
    auto* to = x.As<decltype(value)>();
    ParallelFor(x.shape.Elements(), kGrain, [to, value](int64_t begin, int64_t end) {
      std::fill(to + begin, to + end, value);
    });
  };
  if (x.dtype == DType::kI32) {
    fill(static_cast<int32_t>(args.value));
  } else {
    WithFloatType(x.dtype, [&]<class T>() { fill(FromFloat<T>(args.value)); });
  }
  return OkStatus();
}

Status Scale(const Stream& stream, const ScaleArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckScale(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.scale(x.As<T>() + begin, args.factor, end - begin);
    });
  });
  return OkStatus();
}

Status AddScaled(const Stream& stream, const AddScaledArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckAddScaled(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.add_scaled(x.As<T>() + begin, args.factor, args.keep, y.As<float>() + begin,
                       end - begin);
    });
  });
  return OkStatus();
}

Status AddSign(const Stream& stream, const AddSignArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAddSign(stream, args));
  const float* x = args.x.As<float>();
  float* y = args.y.As<float>();
  ParallelFor(args.x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float sign = static_cast<float>(x[i] > 0) - static_cast<float>(x[i] < 0);
      y[i] += args.factor * sign;
    }
  });
  return OkStatus();
}

Status ApplyMask(const Stream& stream, const ApplyMaskArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckApplyMask(stream, args));
  const auto* mask = args.mask.As<uint8_t>();
  WithFloatType(x.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.apply_mask(mask + begin, x.As<T>() + begin, end - begin);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
