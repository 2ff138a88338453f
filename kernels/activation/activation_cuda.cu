#include "kernels/activation/activation.h"
#include "kernels/activation/activation_check.h"
#include "kernels/activation/gelu_device.h"
#include "kernels/activation/silu_device.h"
#include "kernels/activation/squared_relu.h"
#include "kernels/cuda/map.h"

namespace weft::kernels::cuda {
namespace {

template <class Function>
struct ValueOf {
  __device__ float operator()(float x) const { return Function(x).Value(); }
};

// A NaN goes through the value.
struct Relu {
  float x;

  __device__ explicit Relu(float at) : x(at) {}
  __device__ float Value() const { return x < 0.0f ? 0.0f : x; }
  __device__ float Derivative() const { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};

struct TanhGradient {
  __device__ float operator()(float dy, float y) const { return dy * (1.0f - y * y); }
};

template <class Function, class T>
struct UnitBackwardMap {
  static constexpr int kUnroll = 2;  ///< More would spill registers.
  const T* dy;
  const T* x;
  T* dx;
  T* y;  ///< or nullptr

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return PackedPair<T, T, kCount>{LoadPacked<kCount>(dy + i), LoadPacked<kCount>(x + i)};
  }
  template <int kCount>
  __device__ void Store(int64_t i, const PackedPair<T, T, kCount>& loaded) const {
    float gradient[kCount], again[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Function at(loaded.b[k]);
      gradient[k] = loaded.a[k] * at.Derivative();
      again[k] = at.Value();
    }
    StoreFloats(dx + i, gradient);
    if (y != nullptr) StoreFloats(y + i, again);
  }
};

// Calls fn.operator()<Function>() with the struct of `form`.
template <class Fn>
Status WithUnit(GeluForm form, Fn&& fn) {
  if (form == GeluForm::kErf) return fn.template operator()<ErfGelu>();
  return fn.template operator()<TanhGelu>();
}
template <class Fn>
Status WithUnit(UnitFunction function, Fn&& fn) {
  if (function == UnitFunction::kSilu) return fn.template operator()<Silu>();
  return fn.template operator()<Relu>();
}

template <class Form, class Args>
Status MapForward(const Stream& stream, const char* op, Form form, const Args& args) {
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return WithUnit(form, [&]<class Function>() {
      const UnaryMap<T, T, ValueOf<Function>> map = {
          args.x.template As<T>(), args.y.template As<T>(), {}};
      return LaunchMap<kWide<T>>(stream, op, map, args.x.shape.Elements(),
                                 Aligned16(args.x.data, args.y.data));
    });
  });
}

template <class Form, class Args>
Status MapBackward(const Stream& stream, const char* op, Form form, const Args& args) {
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return WithUnit(form, [&]<class Function>() {
      const UnitBackwardMap<Function, T> map = {args.dy.template As<T>(), args.x.template As<T>(),
                                                args.dx.template As<T>(),
                                                args.y ? args.y.template As<T>() : nullptr};
      return LaunchMap<kWide<T>>(stream, op, map, args.x.shape.Elements(),
                                 Aligned16(map.dy, map.x, map.dx, map.y));
    });
  });
}

// Elements [4 i, 4 i + 4) are those of a thread.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    TwoOfFourForwardKernel(const T* x, T* y, int64_t groups) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= groups) return;
  SquaredReluGroup group = {};
  for (int k = 0; k < 4; ++k) group.x[k] = Widen(x[4 * i + k]);
  group.KeepTwo();
  for (int k = 0; k < 4; ++k) y[4 * i + k] = Narrow<T>(group.Value(k));
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    SquaredReluBackwardKernel(const T* dy, const T* x, T* dx, T* y, int64_t count,
                              bool two_of_four) {
  const int64_t first = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) * 4;
  if (first >= count) return;
  const int own = count - first < 4 ? static_cast<int>(count - first) : 4;
  SquaredReluGroup group = {};
  for (int k = 0; k < own; ++k) group.x[k] = Widen(x[first + k]);
  if (two_of_four) group.KeepTwo();
  for (int k = 0; k < own; ++k) {
    dx[first + k] = Narrow<T>(Widen(dy[first + k]) * group.Derivative(k));
    if (y != nullptr) y[first + k] = Narrow<T>(group.Value(k));
  }
}

}  // namespace

Status GeluForward(const Stream& stream, const GeluForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGeluForward(stream, args));
  return MapForward(stream, "GeluForward", args.form, args);
}

Status GeluBackward(const Stream& stream, const GeluBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGeluBackward(stream, args));
  return MapBackward(stream, "GeluBackward", args.form, args);
}

Status UnitForward(const Stream& stream, const UnitForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUnitForward(stream, args));
  return MapForward(stream, "UnitForward", args.function, args);
}

Status UnitBackward(const Stream& stream, const UnitBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckUnitBackward(stream, args));
  return MapBackward(stream, "UnitBackward", args.function, args);
}

Status TanhForward(const Stream& stream, const TanhForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckTanhForward(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const UnaryMap<T, T, Tanh> map = {args.x.As<T>(), args.y.As<T>(), {}};
    return LaunchMap<kWide<T>>(stream, "TanhForward", map, args.x.shape.Elements(),
                               Aligned16(map.x, map.y));
  });
}

Status TanhBackward(const Stream& stream, const TanhBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckTanhBackward(stream, args));
  return WithFloatType(args.y.dtype, [&]<class T>() {
    const BinaryMap<T, T, T, TanhGradient> map = {
        args.dy.As<T>(), args.y.As<T>(), args.dx.As<T>(), {}};
    return LaunchMap<kWide<T>>(stream, "TanhBackward", map, args.y.shape.Elements(),
                               Aligned16(map.a, map.b, map.y));
  });
}

Status SquaredReluForward(const Stream& stream, const SquaredReluForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSquaredReluForward(stream, args));
  const int64_t count = args.x.shape.Elements();
  return WithFloatType(args.x.dtype, [&]<class T>() {
    if (!args.two_of_four) {
      const UnaryMap<T, T, ValueOf<SquaredReluAt>> map = {args.x.As<T>(), args.y.As<T>(), {}};
      return LaunchMap<kWide<T>>(stream, "SquaredReluForward", map, count, Aligned16(map.x, map.y));
    }
    return Launch(stream, "SquaredReluForward",
                  {.grid = {CeilDiv(count / 4, kBlockThreads)}, .block = {kBlockThreads}},
                  TwoOfFourForwardKernel<T>, args.x.As<T>(), args.y.As<T>(), count / 4);
  });
}

Status SquaredReluBackward(const Stream& stream, const SquaredReluBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSquaredReluBackward(stream, args));
  const int64_t count = args.x.shape.Elements();
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return Launch(stream, "SquaredReluBackward",
                  {.grid = {CeilDiv(count, 4 * kBlockThreads)}, .block = {kBlockThreads}},
                  SquaredReluBackwardKernel<T>, args.dy.As<T>(), args.x.As<T>(), args.dx.As<T>(),
                  args.y ? args.y.As<T>() : nullptr, count, args.two_of_four);
  });
}

}  // namespace weft::kernels::cuda
