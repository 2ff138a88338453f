#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu/swiglu_check.h"
#include "kernels/swiglu/swiglu_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

template <class T>
T* Row(const TensorView& view, int64_t row) {
  return view ? view.As<T>() + row * view.row_stride : nullptr;
}

template <class Fn>
void ForRows(const TensorView& view, Fn&& fn) {
  const int64_t grain = kGrain / std::max<int64_t>(view.shape[1], 1) + 1;
  ParallelFor(view.shape[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

}  // namespace

Status SwiGluForward(const Stream& stream, const SwiGluForwardArgs& args) {
  const TensorView& gate = args.gate;
  WEFT_RETURN_IF_ERROR(CheckSwiGluForward(stream, args));
  WithFloatType(gate.dtype, [&]<class T>() {
    const GatedLoops<T>& loops = PickSwiGluKernels().Of<T>().Of(args.function);
    ForRows(gate, [&](int64_t row) {
      loops.forward(Row<T>(gate, row), Row<T>(args.up, row), Row<T>(args.y, row), gate.shape[1]);
    });
  });
  return OkStatus();
}

Status SwiGluBackward(const Stream& stream, const SwiGluBackwardArgs& args) {
  const TensorView& gate = args.gate;
  WEFT_RETURN_IF_ERROR(CheckSwiGluBackward(stream, args));
  WithFloatType(gate.dtype, [&]<class T>() {
    const GatedLoops<T>& loops = PickSwiGluKernels().Of<T>().Of(args.function);
    ForRows(gate, [&](int64_t row) {
      loops.backward(Row<T>(args.dy, row), Row<T>(gate, row), Row<T>(args.up, row),
                     Row<T>(args.dgate, row), Row<T>(args.dup, row), Row<T>(args.y, row),
                     gate.shape[1]);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
