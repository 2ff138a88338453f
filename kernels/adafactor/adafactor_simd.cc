#include "kernels/adafactor/adafactor_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Vectors whose f32 sums are added up in f64: few enough to lose nothing.
constexpr int64_t kVectorsOfASum = 64;

WEFT_INLINE VecF GradientAt(const AdafactorGradient& gradient, int64_t i, int64_t count) {
  return Min(Set(gradient.limit),
             Max(Set(-gradient.limit), LoadUpTo(gradient.data + i, count) * gradient.scale));
}

// Sum over the row of what term(i, count) gives for its vectors.
template <class Term>
WEFT_INLINE double SumOfRow(int64_t columns, const Term& term) {
  double sum = 0;
  for (int64_t i = 0; i < columns;) {
    VecF part = {};
    for (int64_t v = 0; v < kVectorsOfASum && i < columns; ++v, i += kLanes) {
      part += term(i, columns - i);
    }
    sum += static_cast<double>(ReduceAdd(part));
  }
  return sum;
}

double Squares(const AdafactorGradient& gradient, int64_t columns, float* column_sums) {
  return SumOfRow(
      columns, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        VecF g = GradientAt(gradient, i, count), g2 = g * g;
        StoreUpTo(column_sums + i, LoadUpTo(column_sums + i, count) + g2, count);
        return g2;
      });
}

double UpdateSquares(const AdafactorGradient& gradient, const float* column_factors,
                     int64_t columns) {
  return SumOfRow(
      columns, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        VecF u = GradientAt(gradient, i, count) * LoadUpTo(column_factors + i, count);
        return u * u;
      });
}

void Apply(const AdafactorGradient& gradient, const float* column_factors, float decay, float size,
           int64_t columns, float* parameter) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t count = columns - i;
    VecF u = GradientAt(gradient, i, count) * LoadUpTo(column_factors + i, count);
    StoreUpTo(parameter + i, LoadUpTo(parameter + i, count) * decay - u * size, count);
  }
}

}  // namespace

const AdafactorKernels kAdafactorKernels = {
    .squares = Squares, .update_squares = UpdateSquares, .apply = Apply};

}  // namespace weft::kernels::cpu::WEFT_ISA
