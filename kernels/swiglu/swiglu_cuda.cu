#include "kernels/activation/gelu_device.h"
#include "kernels/activation/silu_device.h"
#include "kernels/cuda/row_map.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu/swiglu_check.h"

namespace weft::kernels::cuda {
namespace {

template <class Function, class T>
struct SwiGluForwardMap {
  StridedRows<const T> gate;
  StridedRows<const T> up;
  StridedRows<T> y;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    const Packed<T, kCount> g = LoadPacked<kCount>(gate.At(row, column));
    const Packed<T, kCount> factor = LoadPacked<kCount>(up.At(row, column));
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = Function(g[k]).Value() * factor[k];
    StoreFloats(y.At(row, column), values);
  }
};

template <class Function, class T>
struct SwiGluBackwardMap {
  StridedRows<const T> dy;
  StridedRows<const T> gate;
  StridedRows<const T> up;
  StridedRows<T> dgate;
  StridedRows<T> dup;
  StridedRows<T> y;  ///< or none

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    const Packed<T, kCount> d = LoadPacked<kCount>(dy.At(row, column));
    const Packed<T, kCount> g = LoadPacked<kCount>(gate.At(row, column));
    const Packed<T, kCount> factor = LoadPacked<kCount>(up.At(row, column));
    float of_gate[kCount], of_up[kCount], again[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Function at(g[k]);
      of_gate[k] = d[k] * factor[k] * at.Derivative();
      of_up[k] = d[k] * at.Value();
      again[k] = at.Value() * factor[k];
    }
    StoreFloats(dgate.At(row, column), of_gate);
    StoreFloats(dup.At(row, column), of_up);
    if (y.data != nullptr) StoreFloats(y.At(row, column), again);
  }
};

// Calls fn.operator()<Function>() with the struct of `function`.
template <class Fn>
Status WithGate(GateFunction function, Fn&& fn) {
  switch (function) {
    case GateFunction::kGelu:
      return fn.template operator()<TanhGelu>();
    case GateFunction::kErfGelu:
      return fn.template operator()<ErfGelu>();
    default:
      return fn.template operator()<Silu>();
  }
}

}  // namespace

Status SwiGluForward(const Stream& stream, const SwiGluForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSwiGluForward(stream, args));
  const TensorView& gate = args.gate;
  return WithFloatType(gate.dtype, [&]<class T>() {
    return WithGate(args.function, [&]<class Function>() {
      const SwiGluForwardMap<Function, T> map = {RowsOf<const T>(gate), RowsOf<const T>(args.up),
                                                 RowsOf<T>(args.y)};
      return LaunchRowMap<kWide<T>>(stream, "SwiGluForward", map, gate.shape[0], gate.shape[1],
                                    RowsAligned16(gate, args.up, args.y));
    });
  });
}

Status SwiGluBackward(const Stream& stream, const SwiGluBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSwiGluBackward(stream, args));
  const TensorView& gate = args.gate;
  return WithFloatType(gate.dtype, [&]<class T>() {
    return WithGate(args.function, [&]<class Function>() {
      const SwiGluBackwardMap<Function, T> map = {RowsOf<const T>(args.dy), RowsOf<const T>(gate),
                                                  RowsOf<const T>(args.up), RowsOf<T>(args.dgate),
                                                  RowsOf<T>(args.dup),      RowsOf<T>(args.y)};
      return LaunchRowMap<kWide<T>>(
          stream, "SwiGluBackward", map, gate.shape[0], gate.shape[1],
          RowsAligned16(args.dy, gate, args.up, args.dgate, args.dup, args.y));
    });
  });
}

}  // namespace weft::kernels::cuda
