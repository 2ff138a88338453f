#include "kernels/linear/linear_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Columns summed at a time: a whole cache line or more of each row.
constexpr int kVectors = 4;

template <class T>
void ColumnSums(const T* x, int64_t rows, int64_t stride, int64_t columns, bool accumulate,
                float* sums) {
  int64_t c = 0;
  for (; c + kVectors * kLanes <= columns; c += kVectors * kLanes) {
    VecF sum[kVectors] = {};
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[v] += Load(x + r * stride + c + v * kLanes);
    }
    for (int v = 0; v < kVectors; ++v) {
      float* to = sums + c + v * kLanes;
      Store(to, accumulate ? Load(to) + sum[v] : sum[v]);
    }
  }
  for (; c < columns; c += kLanes) {
    int64_t part = columns - c < kLanes ? columns - c : kLanes;
    VecF sum = {};
    for (int64_t r = 0; r < rows; ++r) sum += LoadUpTo(x + r * stride + c, part);
    StoreUpTo(sums + c, accumulate ? LoadUpTo(sums + c, part) + sum : sum, part);
  }
}

}  // namespace

const LinearKernels kLinearKernels = {
    .f32 = {ColumnSums<float>},
    .bf16 = {ColumnSums<BFloat16>},
    .f16 = {ColumnSums<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
