#include "kernels/linear/row_product.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear_simd.h"
#include "kernels/linear/operand.h"

namespace weft::kernels::cpu {
namespace {

// Weights that a thread must have for it to be worth waking.
constexpr int64_t kGrain = 16 << 10;

}  // namespace

void MultiplyRow(const TensorView& x, const TensorView& weight, const float* bias,
                 const TensorView& y) {
  const int64_t out = weight.shape[0], in = weight.shape[1];
  Operand row(x, DType::kF32, true), result(y, DType::kF32, false);
  const auto* factors = row.view().As<float>();
  auto* sums = result.view().As<float>();
  WithFloatType(weight.dtype, [&]<class T>() {
    const LinearLoops<T>& loops = PickLinearKernels().Of<T>();
    ParallelFor(out, std::max(kGrain / in, int64_t{1}), [&](int64_t begin, int64_t end) {
      loops.row_product(factors, weight.As<T>() + begin * weight.row_stride, weight.row_stride,
                        end - begin, in, bias == nullptr ? nullptr : bias + begin, sums + begin);
    });
  });
  result.WriteBack(y);
}

}  // namespace weft::kernels::cpu
