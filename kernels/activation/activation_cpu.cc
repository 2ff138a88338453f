#include "kernels/activation/activation.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation/activation_check.h"
#include "kernels/activation/activation_simd.h"
#include "kernels/activation/squared_relu_loops.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;
// The same for tanh, which has no vector form: only a pooled row of each sequence passes it.
constexpr int64_t kScalarGrain = 1024;

// Calls fn(begin, end) for parts of [0, count) that begin at multiples of four.
template <class Fn>
void ForFours(int64_t count, const Fn& fn) {
  constexpr int64_t kGroup = 4;
  ParallelFor((count + kGroup - 1) / kGroup, kGrain / kGroup, [&](int64_t begin, int64_t end) {
    fn(begin * kGroup, std::min(end * kGroup, count));
  });
}

template <class T>
const typename UnitLoops<T>::Form& LoopsOf(GeluForm form) {
  const UnitLoops<T>& loops = PickUnitKernels().Of<T>();
  return form == GeluForm::kErf ? loops.erf : loops.tanh;
}

template <class T>
const typename UnitLoops<T>::Form& LoopsOf(UnitFunction function) {
  const UnitLoops<T>& loops = PickUnitKernels().Of<T>();
  return function == UnitFunction::kSilu ? loops.silu : loops.relu;
}

template <class Function>
void MapForward(Function function, const TensorView& x, const TensorView& y) {
  WithFloatType(x.dtype, [&]<class T>() {
    const auto& loops = LoopsOf<T>(function);
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.forward(x.As<T>() + begin, y.As<T>() + begin, end - begin);
    });
  });
}

template <class Function, class Args>
void MapBackward(Function function, const Args& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  WithFloatType(x.dtype, [&]<class T>() {
    const auto& loops = LoopsOf<T>(function);
    ParallelFor(x.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
      loops.backward(dy.As<T>() + begin, x.As<T>() + begin, dx.As<T>() + begin,
                     y ? y.As<T>() + begin : nullptr, end - begin);
    });
  });
}

}  // namespace

Status GeluForward(const Stream& stream, const GeluForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGeluForward(stream, args));
  MapForward(args.form, args.x, args.y);
  return OkStatus();
}

Status GeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGeluBackward(stream, args));
  MapBackward(args.form, args);
  return OkStatus();
}

Status UnitForward(const Stream& stream, const UnitForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUnitForward(stream, args));
  MapForward(args.function, args.x, args.y);
  return OkStatus();
}

Status UnitBackward(const Stream& stream, const UnitBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUnitBackward(stream, args));
  MapBackward(args.function, args);
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

Status SquaredReluForward(const Stream& stream, const SquaredReluForwardArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckSquaredReluForward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    ForFours(x.shape.Elements(), [&](int64_t begin, int64_t end) {
      SquaredReluForwardLoop(x.As<T>() + begin, y.As<T>() + begin, end - begin, args.two_of_four);
    });
  });
  return OkStatus();
}

Status SquaredReluBackward(const Stream& stream, const SquaredReluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckSquaredReluBackward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    ForFours(x.shape.Elements(), [&](int64_t begin, int64_t end) {
      SquaredReluBackwardLoop(dy.As<T>() + begin, x.As<T>() + begin, dx.As<T>() + begin,
                              y ? y.As<T>() + begin : nullptr, end - begin, args.two_of_four);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
