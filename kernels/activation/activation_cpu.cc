#include "kernels/activation/activation.h"

#include <cmath>

#include "kernels/activation/activation_check.h"
#include "kernels/activation/activation_simd.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;
// The same for tanh, which has no vector form: only a pooled row of each sequence passes it.
constexpr int64_t kScalarGrain = 1024;

template <class T>
const typename GeluLoops<T>::Form& LoopsOf(GeluForm form) {
  const GeluLoops<T>& loops = PickGeluKernels().Of<T>();
  return form == GeluForm::kErf ? loops.erf : loops.tanh;
}

}  // namespace

Status GeluForward(const Stream& stream, const GeluForwardArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckGeluForward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    const auto& loops = LoopsOf<T>(args.form);
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.forward(x.As<T>() + begin, y.As<T>() + begin, end - begin);
    });
  });
  return OkStatus();
}

Status GeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckGeluBackward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    const auto& loops = LoopsOf<T>(args.form);
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.backward(dy.As<T>() + begin, x.As<T>() + begin, dx.As<T>() + begin,
                     y ? y.As<T>() + begin : nullptr, end - begin);
    });
  });
  return OkStatus();
}

Status TanhForward(const Stream& stream, const TanhForwardArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckTanhForward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    ParallelFor(x.shape.Elements(), kScalarGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        y.As<T>()[i] = FromFloat<T>(std::tanh(ToFloat(x.As<T>()[i])));
      }
    });
  });
  return OkStatus();
}

Status TanhBackward(const Stream& stream, const TanhBackwardArgs& args) {
  const TensorView &dy = args.dy, &y = args.y, &dx = args.dx;
  WEFT_RETURN_IF_ERROR(CheckTanhBackward(stream, args));
  WithFloatType(y.dtype, [&]<class T>() {
    ParallelFor(y.shape.Elements(), kScalarGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float value = ToFloat(y.As<T>()[i]);
        dx.As<T>()[i] = FromFloat<T>(ToFloat(dy.As<T>()[i]) * (1 - value * value));
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
