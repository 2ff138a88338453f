#include "kernels/activation/activation.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation/activation_check.h"
#include "kernels/activation/activation_simd.h"
#include "kernels/activation/squared_relu.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;
// The same for tanh, which has no vector form: only a pooled row of each sequence passes it.
constexpr int64_t kScalarGrain = 1024;

// Calls fn(group, first, count) for the groups of four from elements [begin, end) of x on; the last
// may have fewer.
template <class T, class Fn>
void ForEachGroup(const T* x, int64_t count, bool two_of_four, const Fn& fn) {
  constexpr int64_t kGroup = 4;
  ParallelFor((count + kGroup - 1) / kGroup, kGrain / kGroup, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kGroup; first < std::min(end * kGroup, count); first += kGroup) {
      const auto own = static_cast<int>(std::min(kGroup, count - first));
      SquaredReluGroup group = {};
      for (int k = 0; k < own; ++k) group.x[k] = ToFloat(x[first + k]);
      if (two_of_four) group.KeepTwo();
      fn(group, first, own);
    }
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
    ForEachGroup(x.As<T>(), x.shape.Elements(), args.two_of_four,
                 [&](const SquaredReluGroup& group, int64_t first, int count) {
                   for (int k = 0; k < count; ++k) {
                     y.As<T>()[first + k] = FromFloat<T>(group.Value(k));
                   }
                 });
  });
  return OkStatus();
}

Status SquaredReluBackward(const Stream& stream, const SquaredReluBackwardArgs& args) {
  const TensorView &dy = args.dy, &x = args.x, &dx = args.dx, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckSquaredReluBackward(stream, args));
  WithFloatType(x.dtype, [&]<class T>() {
    ForEachGroup(x.As<T>(), x.shape.Elements(), args.two_of_four,
                 [&](const SquaredReluGroup& group, int64_t first, int count) {
                   for (int k = 0; k < count; ++k) {
                     const int64_t i = first + k;
                     dx.As<T>()[i] = FromFloat<T>(ToFloat(dy.As<T>()[i]) * group.Derivative(k));
                     if (y) y.As<T>()[i] = FromFloat<T>(group.Value(k));
                   }
                 });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
