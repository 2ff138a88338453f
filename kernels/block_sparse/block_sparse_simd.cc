#include "kernels/block_sparse/block_sparse_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Sums that stay in registers: kRows rows of kWide vectors, 16 columns or fewer.
constexpr int kWide = kLanes >= 16 ? 1 : 2;
constexpr int kRows = 12 / kWide;

template <class T>
void Widen(const T* from, int64_t stride, int64_t rows, int64_t size, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += size) {
    for (int64_t i = 0; i < size; i += kLanes) Store(to + i, Load(from + i));
  }
}

template <class T, int kCount>
WEFT_INLINE void MultiplyRows(const BlockTerm* terms, int64_t count, int64_t row, int64_t x_stride,
                              T* y, int64_t y_stride, int64_t column, int64_t size,
                              const float* bias, bool accumulate) {
  VecF sums[kCount][kWide] = {};
  for (int64_t t = 0; t < count; ++t) {
    const float* x = terms[t].x + row * x_stride;
    const float* panel = terms[t].panel + column;
    for (int64_t p = 0; p < size; ++p, panel += size) {
      VecF w[kWide];
      for (int v = 0; v < kWide; ++v) w[v] = Load(panel + v * kLanes);
      for (int r = 0; r < kCount; ++r) {
        const VecF factor = Set(x[r * x_stride + p]);
        for (int v = 0; v < kWide; ++v) sums[r][v] += factor * w[v];
      }
    }
  }
  for (int r = 0; r < kCount; ++r) {
    T* to = y + (row + r) * y_stride + column;
    for (int v = 0; v < kWide; ++v) {
      VecF sum = sums[r][v];
      if (accumulate) sum += Load(to + v * kLanes);
      if (bias != nullptr) sum += Load(bias + column + v * kLanes);
      Store(to + v * kLanes, sum);
    }
  }
}

template <class T>
void Multiply(const BlockTerm* terms, int64_t count, int64_t x_stride, T* y, int64_t y_stride,
              int64_t rows, int64_t size, const float* bias, bool accumulate) {
  for (int64_t column = 0; column < size; column += kWide * kLanes) {
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) {
      MultiplyRows<T, kRows>(terms, count, row, x_stride, y, y_stride, column, size, bias,
                             accumulate);
    }
    for (; row < rows; ++row) {
      MultiplyRows<T, 1>(terms, count, row, x_stride, y, y_stride, column, size, bias, accumulate);
    }
  }
}

// Divides the side of a block.
constexpr int kOuterRows = 8 / kWide;

void Outer(const float* a, const float* b, int64_t rows, int64_t size, float* d, bool accumulate) {
  for (int64_t i = 0; i < size; i += kOuterRows) {
    for (int64_t column = 0; column < size; column += kWide * kLanes) {
      VecF sums[kOuterRows][kWide] = {};
      for (int64_t row = 0; row < rows; ++row) {
        const float* left = a + row * size + i;
        const float* right = b + row * size + column;
        VecF w[kWide];
        for (int v = 0; v < kWide; ++v) w[v] = Load(right + v * kLanes);
        for (int r = 0; r < kOuterRows; ++r) {
          const VecF factor = Set(left[r]);
          for (int v = 0; v < kWide; ++v) sums[r][v] += factor * w[v];
        }
      }
      for (int r = 0; r < kOuterRows; ++r) {
        float* to = d + (i + r) * size + column;
        for (int v = 0; v < kWide; ++v) {
          Store(to + v * kLanes, accumulate ? Load(to + v * kLanes) + sums[r][v] : sums[r][v]);
        }
      }
    }
  }
}

}  // namespace

template <class T>
constexpr BlockSparseLoops<T> kBlockSparseLoopsOf = {Widen<T>, Multiply<T>, Outer};

const BlockSparseKernels kBlockSparseKernels = {
    .f32 = kBlockSparseLoopsOf<float>,
    .bf16 = kBlockSparseLoopsOf<BFloat16>,
    .f16 = kBlockSparseLoopsOf<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
