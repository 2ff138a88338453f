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
                           .ContiguousTensor("x", x, x.shape, kFloatTypes)
                           .ContiguousTensor("y", y, x.shape, {x.dtype})
                           .status());
  WithFloatType(x.dtype, [&]<class T>() {
    const GeluLoops<T>& loops = PickGeluKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.forward(x.As<T>() + begin, y.As<T>() + begin, end - begin);
    });
  });
  return OkStatus();
}

Status GeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  ArgumentCheck check(stream, "GeluBackward");
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", dy, x.shape, {x.dtype})
      .ContiguousTensor("dx", dx, x.shape, {x.dtype});
  if (y) {
    check.ContiguousTensor("y", y, x.shape, {x.dtype})
        .That(y.data != x.data && y.data != dy.data, "y is x or dy, which are still read");
  }
  WEFT_RETURN_IF_ERROR(check.status());
  WithFloatType(x.dtype, [&]<class T>() {
    const GeluLoops<T>& loops = PickGeluKernels().Of<T>();
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.backward(dy.As<T>() + begin, x.As<T>() + begin, dx.As<T>() + begin,
                     y ? y.As<T>() + begin : nullptr, end - begin);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
