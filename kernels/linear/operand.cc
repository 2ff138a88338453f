#include "kernels/linear/operand.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise_simd.h"

namespace weft::kernels::cpu {
namespace {

// Copies rows between views of the same shape, of one type or with f32 on one side.
void CopyRows(const TensorView& from, const TensorView& to) {
  const bool widen = to.dtype == DType::kF32;
  const int64_t columns = from.shape[1];
  WithFloatType(widen ? from.dtype : to.dtype, [&]<class T>() {
    const ElementwiseLoops<T>& loops = PickElementwiseKernels().Of<T>();
    ParallelFor(from.shape[0], 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t source = r * from.row_stride, target = r * to.row_stride;
        if (from.dtype == to.dtype) {
          std::copy_n(from.As<T>() + source, columns, to.As<T>() + target);
        } else if (widen) {
          loops.to_f32(from.As<T>() + source, to.As<float>() + target, columns);
        } else {
          loops.from_f32(from.As<float>() + source, to.As<T>() + target, columns);
        }
      }
    });
  });
}

}  // namespace

Operand::Operand(const TensorView& view, DType type, bool is_input) : view_(view) {
  if (view.dtype == type && view.Contiguous()) return;
  copy_ = AllocateAligned(static_cast<size_t>(view.shape.Elements()) * DTypeSize(type));
  if (copy_ == nullptr) throw std::bad_alloc();
  view_ = TensorView(copy_.get(), type, view.shape);
  if (is_input) CopyRows(view, view_);
}

void Operand::WriteBack(const TensorView& to) const {
  if (copy_ != nullptr) CopyRows(view_, to);
}

}  // namespace weft::kernels::cpu
